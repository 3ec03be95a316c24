"""What is compiled, and left out where there is no C compiler: then the same in Python is used."""

from setuptools import Extension, setup

setup(
    options={"build_ext": {"parallel": True}},  # each takes some seconds of a processor
    ext_modules=[
        Extension(
            "remora.codec._compiled",
            ["daemon/remora/codec/_compiled.pyx"],
            extra_compile_args=["-O3"],  # has long texts looked through 16 bytes at a time
            optional=True,
        ),
        Extension(
            "remora.codec._sequencer",
            ["daemon/remora/codec/_sequencer.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "remora.codec._event_copies",
            ["daemon/remora/codec/_event_copies.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "remora.codec._s3_records",
            ["daemon/remora/codec/_s3_records.pyx"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
    ],
)
