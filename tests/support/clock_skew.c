/* A preload that moves the wall clock of one process by the seconds written in a file.
 *
 * CLOCK_SKEW_FILE names the file; it is read at every call, so the clock can be moved while
 * the process runs. The monotonic clock is left alone: timers and sleeps stay right.
 *
 * cc -shared -fPIC -O2 -o clock_skew.so clock_skew.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long NANOS = 1000000000L;

static double skew_seconds(void)
{
    char text[64];
    const char *path = getenv("CLOCK_SKEW_FILE");
    if (path == NULL)
        return 0.0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0.0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0)
        return 0.0;
    text[length] = '\0';
    return strtod(text, NULL);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*original)(clockid_t, struct timespec *);
    if (original == NULL)
        original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = original(clock, now);
    if (result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return result;

    double skew = skew_seconds();
    long whole = (long)skew;
    now->tv_sec += whole;
    now->tv_nsec += (long)((skew - (double)whole) * (double)NANOS);
    if (now->tv_nsec < 0) {
        now->tv_nsec += NANOS;
        now->tv_sec -= 1;
    } else if (now->tv_nsec >= NANOS) {
        now->tv_nsec -= NANOS;
        now->tv_sec += 1;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *where)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where != NULL)
        *where = exact.tv_sec;
    return exact.tv_sec;
}
