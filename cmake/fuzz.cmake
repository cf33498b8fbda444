# Fuzz targets: tests/fuzz/<name>_fuzz.cpp, one per format that Segue reads (docs/fuzzing.md). With
# SEGUE_FUZZ libFuzzer drives them, in `make fuzz`; in any other build a plain main replays what
# tests/fuzz/corpus/<name> holds, as the test fuzz.<name>.

if(SEGUE_PORTABLE)
  return()  # small binaries for another machine, where there is nothing to read
endif()

# "name: the highest room it needs"
set(SEGUE_FUZZ_TARGETS
  "npy: base"
  "safetensors: base"
  "log_schema: data"
  "csv: data"
  "id_dictionary: data"
  "index_file: data"
  "store_manifest: data"
  "mllog: report"
  "rcp: report"
  "run_reader: report"
  "trace: report"
  "frame: comm"
  "rendezvous: comm"
  "flight: comm"
  "run_config: train"
  "checkpoint_manifest: train"
  "run_state: train"
  "version_manifest: publish"
  "bench_rates: train"
)

set(segue_fuzz_dir ${CMAKE_SOURCE_DIR}/tests/fuzz)
add_custom_target(segue_fuzz)

# segue_add_fuzz_target(<name> <room> <main>): `main` is empty where libFuzzer brings its own.
function(segue_add_fuzz_target name room main)
  set(target segue_fuzz_${name})
  add_executable(${target} ${segue_fuzz_dir}/${name}_fuzz.cpp ${main})
  target_include_directories(${target} PRIVATE ${segue_fuzz_dir})
  target_link_libraries(${target} PRIVATE segue_${room} ${SEGUE_PRIVATE_${room}})
  add_dependencies(segue_fuzz ${target})
endfunction()

foreach(row IN LISTS SEGUE_FUZZ_TARGETS)
  string(REGEX MATCH "^([a-z_]+): *([a-z]+)$" _ "${row}")
  set(name ${CMAKE_MATCH_1})
  set(room ${CMAKE_MATCH_2})
  if(SEGUE_FUZZ)
    segue_add_fuzz_target(${name} ${room} "")
    target_link_options(segue_fuzz_${name} PRIVATE -fsanitize=fuzzer)
  else()
    segue_add_fuzz_target(${name} ${room} ${segue_fuzz_dir}/replay_main.cpp)
    add_test(NAME fuzz.${name} COMMAND segue_fuzz_${name} ${segue_fuzz_dir}/corpus/${name})
    set_tests_properties(fuzz.${name} PROPERTIES TIMEOUT ${SEGUE_TEST_TIMEOUT})
  endif()
endforeach()

if(NOT SEGUE_FUZZ)
  segue_add_fuzz_target(misbehaving base ${segue_fuzz_dir}/replay_main.cpp)
  add_test(NAME scripts.fuzz_replay COMMAND ${CMAKE_SOURCE_DIR}/tests/scripts/fuzz_replay_test.sh
    $<TARGET_FILE:segue_fuzz_misbehaving>)
  set_tests_properties(scripts.fuzz_replay PROPERTIES TIMEOUT 60)
endif()
