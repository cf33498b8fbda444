# Script: fails when one of OBJECTS defines a weak function (see segue_check_avx512 in rooms.cmake).

set(found "")
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " W [^\n]+" weak "${symbols}")
  foreach(symbol IN LISTS weak)
    string(APPEND found "  ${object}:${symbol}\n")
  endforeach()
endforeach()
if(found)
  message(FATAL_ERROR "AVX-512 code that other files may end up calling:\n${found}"
    "Put these functions into an anonymous namespace, or keep them out of the file.")
endif()
