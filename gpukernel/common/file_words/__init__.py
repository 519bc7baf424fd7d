"""The sentences that a wrong ``courses.yaml`` is told: the English of YAML's reader and of pydantic, so that it can be translated.

Imported by `gpukernel.common.course_file`.  What a new version of theirs says and nobody here knows stays as it is.
"""
