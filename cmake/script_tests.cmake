# Tests of the shell scripts. Exit code 77 means: skipped, a tool is missing.

add_test(NAME scripts.yambda COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/yambda_test.sh)
set_tests_properties(scripts.yambda PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)

# SEGUE_PYTHON names the python that has the packages, where it is not python3.
if(TARGET segue_train_test)
  add_test(NAME scripts.checkpoint
    COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/checkpoint_test.sh $<TARGET_FILE:segue_train_test>)
  set_tests_properties(scripts.checkpoint PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)
endif()
