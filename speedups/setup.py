"""Build the extension modules. With the stable ABI, one wheel for a platform works with Python 3.11 and newer."""

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = [
    Extension(
        f"jsclient_speedups.{name}",
        [f"jsclient_speedups/{name}.pyx"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
    )
    for name in (
        "scanner",
        "parts",
        "blocks",
        "runs",
        "calls",
        "stored",
        "commands",
        "acks",
        "ring",
        "slots",
        "masks",
    )
]

setup(
    ext_modules=cythonize(MODULES, build_dir="build"),
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
