"""Projects with every mistake that the doctor knows, each marked ``expect: ID`` where it stands.

What is not marked is right. They are copied to a folder of their own and checked there.
"""
