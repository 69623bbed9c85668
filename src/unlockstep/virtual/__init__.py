"""A run trained in this process, under virtual time: real learners, the unchanged core, a clock moved by hand."""
