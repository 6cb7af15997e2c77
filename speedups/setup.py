"""The extension module, for the stable ABI: one wheel a platform serves Python 3.11 and all newer ones."""

from Cython.Build import cythonize
from setuptools import Extension, setup

SCANNER = Extension(
    "jsclient_speedups.scanner",
    ["jsclient_speedups/scanner.pyx"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
)

setup(
    ext_modules=cythonize([SCANNER], build_dir="build"),
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
