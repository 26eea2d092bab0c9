"""The physics of Construction: Box2D worlds, built for one call and then discarded.

    physics   `settle` and `roll`, which choose between the kernels and `World`, the reference
    native    addresses of Box2D's functions, checks of its memory layout, calls of the kernels
    kernel    the same worlds as `physics.World`, bit for bit, in one compiled call
    fields    the memory layout of Box2D's objects, and access to their fields from kernels
    engine    Box2D itself: definitions of bodies and fixtures, welds that can be restored

A file imports only those below it, and only `engine` imports Box2D.
"""
