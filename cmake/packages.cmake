# Libraries that a machine may lack. Each is looked for on the system and then in the bundle, a folder
# that `make bundle` fills elsewhere: <name>/include and <name>/lib. pkg-config is not needed.
set(DROIDSPEAK_BUNDLE ${CMAKE_SOURCE_DIR}/.cache/bundle CACHE PATH "Carried headers and libraries")
set(bundled_packages "")

# find_carried(pcre2 HEADER pcre2.h LIBRARIES pcre2-8) makes the target pcre2::pcre2. Header and
# libraries come from one place, so that they are of one version.
macro(find_carried name)
  cmake_parse_arguments(CARRIED "" "HEADER" "LIBRARIES" ${ARGN})
  set(found_include "")
  set(found_libraries "")
  find_on_system(${CARRIED_HEADER} "${CARRIED_LIBRARIES}" found_include found_libraries)
  if(NOT found_include)
    find_in_bundle(${name} ${CARRIED_HEADER} "${CARRIED_LIBRARIES}" found_include found_libraries)
  endif()
  add_library(${name}::${name} INTERFACE IMPORTED)
  target_include_directories(${name}::${name} SYSTEM INTERFACE ${found_include})
  target_link_libraries(${name}::${name} INTERFACE ${found_libraries})
endmacro()

function(find_on_system header names include_result libraries_result)
  unset(system_include)
  find_path(system_include ${header} NO_CACHE)
  set(libraries "")
  foreach(name ${names})
    unset(system_library)
    find_library(system_library ${name} NO_CACHE)
    if(NOT system_include OR NOT system_library)
      return()
    endif()
    list(APPEND libraries ${system_library})
  endforeach()
  set(${include_result} ${system_include} PARENT_SCOPE)
  set(${libraries_result} ${libraries} PARENT_SCOPE)
endfunction()

# The bundle's libraries carry their run-time names (libz.so.1), without links.
function(find_in_bundle package header names include_result libraries_result)
  set(folder ${DROIDSPEAK_BUNDLE}/${package})
  set(libraries "")
  set(lacking "")
  if(NOT EXISTS ${folder}/include/${header})
    set(lacking ${header})
  endif()
  foreach(name ${names})
    file(GLOB library ${folder}/lib/lib${name}.so*)
    if(NOT library)
      set(lacking "${header} with lib${name}")
    endif()
  endforeach()
  if(lacking)
    message(FATAL_ERROR "${lacking} was found neither on this machine nor in the bundle ${folder}. "
      "`tools/setup build` installs it; without a network, run `make bundle` on a machine that has it "
      "and bring the folder here.")
  endif()
  foreach(name ${names})
    file(GLOB library ${folder}/lib/lib${name}.so*)
    bundled_library(${library} target)
    list(APPEND libraries ${target})
  endforeach()
  set(${include_result} ${folder}/include PARENT_SCOPE)
  set(${libraries_result} ${libraries} PARENT_SCOPE)
  set(bundled_packages ${bundled_packages} ${package} PARENT_SCOPE)
endfunction()

# As an imported target, so that CMake puts the folder into the run-time path of what links it.
function(bundled_library file result)
  get_filename_component(name ${file} NAME)
  set(target bundled::${name})
  if(NOT TARGET ${target})
    add_library(${target} SHARED IMPORTED)
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${file})
  endif()
  set(${result} ${target} PARENT_SCOPE)
endfunction()

find_carried(xxhash HEADER xxhash.h LIBRARIES xxhash)
find_carried(pcre2 HEADER pcre2.h LIBRARIES pcre2-8)
find_carried(utf8proc HEADER utf8proc.h LIBRARIES utf8proc)
find_carried(zlib HEADER zlib.h LIBRARIES z)
find_carried(openssl HEADER openssl/ssl.h LIBRARIES ssl crypto)

# Headers only.
find_carried(boost HEADER boost/beast/http/parser.hpp)

find_package(hwy CONFIG QUIET)
if(NOT hwy_FOUND)
  find_carried(hwy HEADER hwy/highway.h LIBRARIES hwy)
  target_compile_definitions(hwy::hwy INTERFACE HWY_SHARED_DEFINE)
  set(version "")
  foreach(header highway.h base.h)
    file(STRINGS ${found_include}/hwy/${header} lines REGEX "^#define HWY_(MAJOR|MINOR|PATCH) [0-9]+")
    list(APPEND version ${lines})
  endforeach()
  string(REGEX REPLACE "[^;]* ([0-9]+)" "\\1" version "${version}")
  list(JOIN version . hwy_VERSION)
endif()

# Chart.js for the web page: Debian's libjs-chart.js, or the bundle's.
find_file(CHART_JS NAMES chart.min.js chart.umd.js PATHS /usr/share/javascript/chart.js
  /usr/share/nodejs/chart.js/dist ${DROIDSPEAK_BUNDLE}/chart.js NO_DEFAULT_PATH)

if(bundled_packages)
  list(JOIN bundled_packages " " names)
  message(STATUS "From the bundle ${DROIDSPEAK_BUNDLE}: ${names}")
  # The older kind of run-time path also serves the libraries' own libraries.
  add_link_options(LINKER:--disable-new-dtags)
endif()
