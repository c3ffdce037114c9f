# The CUDA toolkit, cuBLAS, cuDNN and cudnn-frontend. Hopper unless CMAKE_CUDA_ARCHITECTURES
# says otherwise, or all that are meant, and PTX for what comes later, with DROIDSPEAK_CUDA_ALL.
option(DROIDSPEAK_CUDA_ALL "Code for compute capability 8.0, 8.6, 8.9, 9.0 and 10.0, and PTX" OFF)
if(DROIDSPEAK_CUDA_ALL)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  # 8.x run the same code: it is translated once and assembled for each.
  string(APPEND CMAKE_CUDA_FLAGS " -gencode=arch=compute_80,code=[sm_80,sm_86,sm_89]"
    " -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_100,code=[sm_100,compute_100]")
elseif(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin REQUIRED)
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_package(CUDAToolkit REQUIRED)

# `tools/setup cuda` puts the headers there, or the bundle carries them.
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h PATHS ${CMAKE_SOURCE_DIR}/.cache/cudnn_frontend/include
  ${DROIDSPEAK_BUNDLE}/cudnn_frontend/include REQUIRED)

# cuDNN is NVIDIA's package or the one that came with torch; its headers may be the bundle's.
execute_process(COMMAND python3 -c "import nvidia.cudnn as c; print(list(c.__path__)[0])"
  OUTPUT_VARIABLE python_cudnn OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
  PATHS ${python_cudnn}/include ${DROIDSPEAK_BUNDLE}/cudnn/include REQUIRED)
find_file(CUDNN_LIBRARY libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR}
  PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib64 ${python_cudnn}/lib NO_DEFAULT_PATH)
add_library(droidspeak_cudnn INTERFACE)
target_include_directories(droidspeak_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
target_link_libraries(droidspeak_cudnn INTERFACE ${CMAKE_DL_LIBS})  # loads cuDNN when it is first used
get_filename_component(cudnn_folder "${CUDNN_LIBRARY}" DIRECTORY)
if(CUDNN_LIBRARY AND NOT cudnn_folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  target_link_options(droidspeak_cudnn INTERFACE LINKER:-rpath,${cudnn_folder})
endif()
