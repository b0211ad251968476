"""A small Django shop (``make shop``), and a day in it on which workers are killed (``make demo``).

``shop/`` is the project as it would stand by itself; all else is the stage that it is shown on.
"""
