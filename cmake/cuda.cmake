# The CUDA toolkit, cuBLAS, headers of cuDNN and cudnn-frontend. Hopper unless CMAKE_CUDA_ARCHITECTURES
# says otherwise.
if(NOT CMAKE_CUDA_ARCHITECTURES)
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

# `tools/setup cuda` puts the headers there.
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
  PATHS ${CMAKE_SOURCE_DIR}/.cache/cudnn_frontend/include REQUIRED)
find_path(CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
add_library(droidspeak_cudnn INTERFACE)
target_include_directories(droidspeak_cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE})
target_link_libraries(droidspeak_cudnn INTERFACE ${CMAKE_DL_LIBS})  # loads cuDNN when it is first used
