# Script: writes OUTPUT, a header with VERSION and the git commit of SOURCE_DIR ("unknown" outside
# git, "-dirty" when tracked files differ from it).

set(commit unknown)
find_program(git git)
if(git)
  # A source archive unpacked inside somebody else's repository must not take that one's commit.
  execute_process(COMMAND ${git} -C ${SOURCE_DIR} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE rc)
  file(REAL_PATH ${SOURCE_DIR} source)
  if(rc EQUAL 0 AND top STREQUAL source)
    execute_process(COMMAND ${git} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
      OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE rc)
    if(rc EQUAL 0 AND described)
      set(commit ${described})
    endif()
  endif()
endif()

set(text "#pragma once\n\n#define SEGUE_VERSION \"${VERSION}\"\n#define SEGUE_GIT_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${OUTPUT} "${text}")
endif()
