# Tests of the shell scripts. Exit code 77 means: skipped, a tool is missing.

add_test(NAME scripts.yambda COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/yambda_test.sh)
set_tests_properties(scripts.yambda PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)

add_test(NAME scripts.slurm COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/slurm_test.sh)
set_tests_properties(scripts.slurm PROPERTIES TIMEOUT 60)

if(TARGET segue)
  add_test(NAME scripts.install COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/install_test.sh
    ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR} ${PROJECT_VERSION})
  set_tests_properties(scripts.install PROPERTIES TIMEOUT 60)
endif()

# Commands and links of the docs.
if(TARGET segue)
  foreach(kind fast slow)
    add_test(NAME scripts.doc_commands_${kind} COMMAND
      ${CMAKE_SOURCE_DIR}/tests/scripts/doc_commands.sh $<TARGET_FILE:segue> ${kind})
  endforeach()
  set_tests_properties(scripts.doc_commands_fast PROPERTIES TIMEOUT 600)
  set_tests_properties(scripts.doc_commands_slow PROPERTIES TIMEOUT 1800 LABELS slow)
endif()

# SEGUE_PYTHON names the python that has the packages, where it is not python3.
if(TARGET segue_train_test)
  add_test(NAME scripts.checkpoint
    COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/checkpoint_test.sh $<TARGET_FILE:segue_train_test>)
  set_tests_properties(scripts.checkpoint PROPERTIES TIMEOUT 60 SKIP_RETURN_CODE 77)
endif()

# TensorBoard, where python has it, reads what our writer and a run that was killed wrote.
if(TARGET segue_report)
  add_executable(segue_tensorboard_sample ${CMAKE_SOURCE_DIR}/tests/scripts/tensorboard_sample.cpp)
  target_link_libraries(segue_tensorboard_sample PRIVATE segue_report)
  add_test(NAME scripts.tensorboard COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/tensorboard_test.sh
    $<TARGET_FILE:segue_tensorboard_sample> $<$<TARGET_EXISTS:segue>:$<TARGET_FILE:segue>>)
  set_tests_properties(scripts.tensorboard PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS slow)
endif()

# Chromium, where there is one, draws the HTML report and a trace.
if(TARGET segue AND TARGET segue_report)
  foreach(page report trace)
    add_test(NAME scripts.${page} COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/${page}_test.sh
      $<TARGET_FILE:segue>)
    set_tests_properties(scripts.${page} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 LABELS slow)
  endforeach()
endif()

# What a user runs after an install, in short.
if(TARGET segue)
  add_test(NAME scripts.acceptance COMMAND ${CMAKE_SOURCE_DIR}/scripts/acceptance.sh --short --ranks 2
    --segue $<TARGET_FILE:segue> --out ${CMAKE_BINARY_DIR}/acceptance)
  set_tests_properties(scripts.acceptance PROPERTIES TIMEOUT 600 LABELS slow RUN_SERIAL TRUE)
endif()

# One try of every scenario. Alone, because its deadlines are those of a machine that is not crowded.
if(TARGET segue)
  add_test(NAME scripts.chaos COMMAND ${CMAKE_SOURCE_DIR}/scripts/chaos.sh --minutes 0 --seed 1
    --segue $<TARGET_FILE:segue>)
  set_tests_properties(scripts.chaos PROPERTIES TIMEOUT 900 LABELS slow RUN_SERIAL TRUE)
endif()
