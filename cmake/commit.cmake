# cmake -DSOURCE=DIR -DOUTPUT=FILE -P commit.cmake: writes the commit that is built as a C++ source, anew only when it has
# changed. The environment's DROIDSPEAK_COMMIT names it where there is no history (an image's build context); an archive
# that git made carries it in archived_commit.txt.
set(commit "$ENV{DROIDSPEAK_COMMIT}")
if(NOT commit AND EXISTS ${SOURCE}/.git)  # not that of a folder around an unpacked archive
  execute_process(COMMAND git -C ${SOURCE} describe --always --dirty=+changes --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  file(STRINGS ${SOURCE}/cmake/archived_commit.txt commit LIMIT_COUNT 1)
  string(SUBSTRING "${commit}" 0 12 commit)
endif()
if(NOT commit MATCHES "^[0-9a-f]+(\\+changes)?$")
  set(commit unknown)
endif()
set(text "namespace droidspeak {\nextern const char* const kBuiltCommit;\nconst char* const kBuiltCommit = \"${commit}\";\n}\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
