"""The claim protocol and the redelivery around it, searched state by state.

Two or three workers (a parent and a child each), a broker that delivers at least once, producers
and a clock. Every step is one atomic operation: a store call, a publish, an ack. Between any two of
them a child or a parent may be killed, a holder may pause for longer than its lease, an ack or a
store's reply may be lost, a message may be delivered twice. All interleavings with at most so many
faults are searched, breadth first; every state is checked against the promises of
``docs/guarantees.md``, and from every state the job can still end without another fault.

The store is the product's own :class:`celery_idem.stores.memory.MemoryStore`, and so the rules are
the product's own :mod:`celery_idem.core.protocol`: ``tests/model`` breaks them there and sees the
model find it. What a worker does around the store is written here again as a program of steps, each
named for the function of ``celery_idem/run.py`` or ``request.py`` that does it.

``python -m model`` searches the larger bound and prints what it found; ``--broken`` prints the
shortest history that refutes each deliberately broken variant.
"""
