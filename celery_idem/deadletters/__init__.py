"""Messages that will not be tried again by themselves, kept to be understood and sent again."""
