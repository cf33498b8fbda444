# Tests of the shell scripts. Exit code 77 means: skipped, a tool is missing.

add_test(NAME scripts.yambda COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/yambda_test.sh)
set_tests_properties(scripts.yambda PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)
