# cmake -DSOURCE=... -DLIBRARY=... -DCOMPILER=... -DFLAGS=... -DLAUNCHER=... -P build_xgrammar.cmake
# Two build folders may want the same library at the same time; the second finds what the first has made.
get_filename_component(folder ${LIBRARY} DIRECTORY)
file(MAKE_DIRECTORY ${folder})
file(LOCK ${folder}/lock TIMEOUT 3600)
if(EXISTS ${LIBRARY})
  return()
endif()

set(jobs $ENV{CMAKE_BUILD_PARALLEL_LEVEL})
if(NOT jobs)
  cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)
endif()
# -O2 compiles in less time than the -O3 that it asks for.
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${folder}/build -DCMAKE_BUILD_TYPE=Release
          -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
          "-DCMAKE_CXX_FLAGS=${FLAGS}" "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG"
          -DXGRAMMAR_BUILD_PYTHON_BINDINGS=OFF -DXGRAMMAR_BUILD_CXX_TESTS=OFF
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${folder}/build --target xgrammar -j ${jobs}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${folder}/build/libxgrammar.a ${LIBRARY})
file(REMOVE_RECURSE ${folder}/build)
