# A room is a folder under src/, a namespace and a static library segue_<room>. This table says which
# rooms a room may include; CMake links by it and scripts/check_includes.sh checks by it (one quoted
# line per room, in this form). A room stands below those it depends on.
set(SEGUE_ROOMS
  "base:"
  "tensor: base"
  "ops: base tensor"
  "attention: base tensor ops"
  "comm: base tensor"
  "batch: base tensor"
  "sparse: base tensor ops comm batch"
  "balance: base tensor comm batch"
  "model: base tensor ops attention comm batch sparse balance"
  "data: base tensor batch"
  "report: base"
  "train: base tensor ops attention comm batch sparse model data balance report"
  "publish: base tensor sparse data train"
  "bench: base tensor ops attention comm batch sparse model data balance report train"
  "edu: base tensor ops comm sparse model report bench"
  "cli: base tensor ops attention comm batch sparse model data balance report train publish bench edu"
)

# The golden runner, tests/golden/runner: no room, yet held to the same rules.
set(SEGUE_RUNNER
  "runner: base tensor ops attention comm batch sparse model data"
)

include(GoogleTest)

# Seconds. Sanitizers make code several times slower.
set(SEGUE_TEST_TIMEOUT 60)
set(SEGUE_SLOW_TEST_TIMEOUT 900)
if(SEGUE_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(SEGUE_TEST_TIMEOUT 300)
  set(SEGUE_SLOW_TEST_TIMEOUT 3600)
endif()

# segue_glob(<folder>), named from the root, with the folders in it: sets `headers`, `sources` (neither tests nor
# main files) and `tests`. src/data/parquet is a library of its own.
function(segue_glob folder)
  set(root ${CMAKE_SOURCE_DIR}/${folder})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${root}/*.h ${root}/*.cuh)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${root}/*.cpp ${root}/*.cu)
  if(NOT folder STREQUAL "src/data/parquet")
    list(FILTER headers EXCLUDE REGEX "/src/data/parquet/")
    list(FILTER sources EXCLUDE REGEX "/src/data/parquet/")
  endif()
  if(NOT SEGUE_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "\\.cu$")
  endif()
  if(NOT SEGUE_X86)
    list(FILTER sources EXCLUDE REGEX "_avx512\\.cpp$")
  endif()
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.(cpp|cu)$")
  list(FILTER sources EXCLUDE REGEX "_(test|main)\\.(cpp|cu)$")
  # Chosen at run time by what the CPU can do; everything else stays at SEGUE_MARCH.
  set(wide ${sources})
  list(FILTER wide INCLUDE REGEX "_avx512\\.cpp$")
  if(wide)
    set_source_files_properties(${wide} PROPERTIES
      COMPILE_OPTIONS "-march=x86-64-v4;-mprefer-vector-width=512" SKIP_PRECOMPILE_HEADERS ON)
  endif()
  return(PROPAGATE headers sources tests)
endfunction()

# What most files include, read once: half of a file's time goes into these. Only for speed: each file includes what it
# needs, and builds without it (SEGUE_PCH=OFF; sanitizers) say so where one does not.
set(SEGUE_PCH_HEADERS <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <limits> <map>
  <memory> <mutex> <numeric> <optional> <random> <set> <span> <string> <string_view> <thread> <utility> <vector>
  <fmt/format.h>)

# Rooms that are compiled several files at a time, which takes a third of the time: headers are read, and templates made,
# once. Not those that compute: how sums round must not depend on who their neighbours are.
set(SEGUE_UNITY_ROOMS base comm sparse model data parquet report train publish bench edu cli)
set(SEGUE_UNITY_FILES 20)  # of a folder, together
# Rooms that only say things and write them: less is made of their code, in a third less time.
set(SEGUE_QUICK_ROOMS report publish cli)
# Files that call something else by a name that another one of their room has, too (door.cpp: g++ takes a string for
# uninitialised there).
set(SEGUE_ALONE_FILES
  src/comm/join/door.cpp src/comm/join/rendezvous.cpp src/sparse/mixed_order.cpp src/sparse/tables_ids.cpp
  src/model/dlrm_config.cpp src/data/parquet/parquet_writers.cpp
  src/data/store/windows.cpp src/data/store/verified_files.cpp
  src/report/metrics_reader.cpp src/report/mlperf/mllog_reader.cpp src/report/page/trace_page.cpp)

# segue_precompile(<target> <owner> [<library> <its header>]): `target` uses the headers that <owner> has compiled, which the
# first to ask for it makes.
function(segue_precompile target owner)
  if(NOT SEGUE_PCH OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  if(NOT TARGET ${owner})
    file(WRITE ${CMAKE_BINARY_DIR}/${owner}.cpp "")
    add_library(${owner} OBJECT ${CMAKE_BINARY_DIR}/${owner}.cpp)
    target_link_libraries(${owner} PRIVATE ${segue_fmt} nlohmann_json::nlohmann_json ${ARGV2})
    foreach(header IN LISTS SEGUE_PCH_HEADERS ARGV3)
      target_precompile_headers(${owner} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${header}>")
    endforeach()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # ccache asks for it
endfunction()

# segue_group_by_folder(<sources>): files of a folder are compiled together, those of a large one in two halves of the alphabet.
# So a new file meets the names of its own folder only.
function(segue_group_by_folder sources)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  set(folders ${sources})
  list(TRANSFORM folders REPLACE "/[^/]*$" "")
  foreach(source folder IN ZIP_LISTS sources folders)
    set(files 0)
    foreach(other IN LISTS folders)
      if("${other}" STREQUAL "${folder}")  # no regular expression: folders may be called anything
        math(EXPR files "${files} + 1")
      endif()
    endforeach()
    cmake_path(GET source FILENAME name)
    set(half "")
    if(files GREATER SEGUE_UNITY_FILES AND name STRGREATER "m")
      set(half _2)
    endif()
    cmake_path(GET folder FILENAME group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group}${half})
  endforeach()
endfunction()

# segue_add_library(<target> <rooms>): from `headers` and `sources`; links the rooms that exist.
function(segue_add_library target rooms)
  # Kernels in Hopper's own instructions compile for nothing else; run time decides who calls them.
  set(hopper ${sources})
  list(FILTER hopper INCLUDE REGEX "/sm90_[^/]*\\.cu$")
  list(REMOVE_ITEM sources ${hopper})
  set(hopper_objects "")
  if(hopper)
    set(hopper_objects $<TARGET_OBJECTS:${target}_sm90>)
    add_library(${target}_sm90 OBJECT ${hopper})
    set_target_properties(${target}_sm90 PROPERTIES CUDA_ARCHITECTURES 90a)
    target_include_directories(${target}_sm90 PRIVATE ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(${target}_sm90 PRIVATE segue_base segue_tensor)
  endif()
  if(sources)
    add_library(${target} STATIC ${sources} ${hopper_objects})
    segue_precompile(${target} segue_pch)
    string(REGEX REPLACE "^segue_" "" room ${target})
    if(CMAKE_BUILD_TYPE STREQUAL "Release" AND room IN_LIST SEGUE_QUICK_ROOMS)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
    endif()
    if(SEGUE_UNITY AND room IN_LIST SEGUE_UNITY_ROOMS)
      list(TRANSFORM SEGUE_ALONE_FILES PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE alone)
      set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
      segue_group_by_folder("${sources}")
      # g++ takes the members of a .cpp file's own types for those of a header.
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    endif()
    set(scope PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src ${SEGUE_GENERATED_DIR})
  add_dependencies(${target} segue_version)
  foreach(room IN LISTS rooms)
    if(TARGET segue_${room})
      target_link_libraries(${target} ${scope} segue_${room})
    endif()
  endforeach()
endfunction()

# segue_add_tests(<room>): one executable per room from `tests`. The name of a suite decides its label:
# Slow... is `slow`, Gpu... is `gpu` (such a test skips itself where there is no GPU).
function(segue_add_tests room)
  set(target segue_${room}_test)
  add_executable(${target} ${tests})
  segue_precompile(${target} segue_test_pch GTest::gtest <gtest/gtest.h>)
  target_link_libraries(${target} PRIVATE segue_${room} ${SEGUE_PRIVATE_${room}} GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE SEGUE_HAS_ARROW=${SEGUE_HAS_ARROW})
  if(room MATCHES "^(data|publish)$" AND TARGET segue_parquet)
    target_link_libraries(${target} PRIVATE segue_parquet segue_arrow)
  endif()
  # Parametrised suites are called Instance/Suite, hence the second pattern of each pair.
  set(slow "Slow*:*/Slow*.*")
  set(gpu "Gpu*:*/Gpu*.*")
  set(common TEST_PREFIX ${room}. WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT 60)
  # Under a sanitizer the start of a process costs more than most tests: one for a whole room, unless its
  # tests are about processes.
  if(SEGUE_SANITIZE AND NOT room MATCHES "^(comm|train|cli)$")
    add_test(NAME ${room} COMMAND ${target} --gtest_brief=1 --gtest_filter=-${slow}:${gpu}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${room} PROPERTIES TIMEOUT ${SEGUE_SLOW_TEST_TIMEOUT} COST 100)
  else()
    gtest_discover_tests(${target} ${common} TEST_FILTER "*-${slow}:${gpu}"
      PROPERTIES TIMEOUT ${SEGUE_TEST_TIMEOUT})
  endif()
  gtest_discover_tests(${target} ${common} TEST_FILTER "${gpu}"
    PROPERTIES TIMEOUT ${SEGUE_TEST_TIMEOUT} LABELS gpu)
  gtest_discover_tests(${target} ${common} TEST_FILTER "${slow}"
    PROPERTIES TIMEOUT ${SEGUE_SLOW_TEST_TIMEOUT} LABELS slow)
endfunction()

# A function that an AVX-512 file shares with others (an inline function, a template) is a weak symbol:
# the linker may keep the AVX-512 copy for all of them, and CPUs without AVX-512 die in it. This test
# fails when there is one. Optimised builds only: without inlining every helper is such a symbol.
function(segue_check_avx512 room)
  if(sources MATCHES "_avx512\\.cpp" AND CMAKE_BUILD_TYPE STREQUAL "Release")
    add_test(NAME ${room}_avx512_is_contained
      COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM}
        "-DOBJECTS=$<FILTER:$<TARGET_OBJECTS:segue_${room}>,INCLUDE,_avx512\\.cpp>"
        -P ${CMAKE_SOURCE_DIR}/cmake/check_avx512.cmake)
    set_tests_properties(${room}_avx512_is_contained PROPERTIES TIMEOUT 30)
  endif()
endfunction()

# segue_embed_page(): the styles and scripts of the report's page, as one more of `sources`.
function(segue_embed_page)
  set(page ${CMAKE_SOURCE_DIR}/src/report/page)
  set(script ${CMAKE_SOURCE_DIR}/cmake/embed_page.cmake)
  set(output ${SEGUE_GENERATED_DIR}/report/report_page.cpp)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DPAGE=${page} -DOUTPUT=${output} -P ${script}
    DEPENDS ${page}/style.css ${page}/charts.js ${page}/script.js ${page}/timeline.js ${script} VERBATIM)
  list(APPEND sources ${output})
  return(PROPAGATE sources)
endfunction()

# segue_add_room(<room> <uses>): library and tests of one room; nothing when its folder has no files.
function(segue_add_room room uses)
  segue_glob(src/${room})
  if(NOT headers AND NOT sources AND NOT tests)
    return()
  endif()
  if(room STREQUAL "report")
    segue_embed_page()
  endif()
  segue_add_library(segue_${room} "${uses}")
  if(sources)
    target_link_libraries(segue_${room}
      PUBLIC ${SEGUE_PUBLIC_${room}} PRIVATE ${SEGUE_PRIVATE_${room}})
    segue_check_avx512(${room})
  else()
    target_link_libraries(segue_${room}
      INTERFACE ${SEGUE_PUBLIC_${room}} ${SEGUE_PRIVATE_${room}})
  endif()
  # Parquet support lives inside data, as a library of its own: the rest of the room, and the trainer,
  # know nothing of Arrow.
  if(room STREQUAL "data" AND SEGUE_HAS_ARROW)
    set(room_tests ${tests})
    segue_glob(src/data/parquet)
    segue_add_library(segue_parquet "${uses};data")
    target_link_libraries(segue_parquet PRIVATE segue_arrow)
    list(PREPEND tests ${room_tests})
  endif()
  if(room STREQUAL "cli")
    target_compile_definitions(segue_cli PRIVATE SEGUE_HAS_ARROW=${SEGUE_HAS_ARROW})
    if(TARGET segue_parquet)
      target_link_libraries(segue_cli PRIVATE segue_parquet)
    endif()
  endif()
  if(tests)
    segue_add_tests(${room})
  endif()
endfunction()

# segue_parse_row(<row>): sets `room` and `uses`.
function(segue_parse_row row)
  string(REGEX MATCH "^([a-z]+): *(.*)$" _ "${row}")
  set(room ${CMAKE_MATCH_1})
  string(REPLACE " " ";" uses "${CMAKE_MATCH_2}")
  return(PROPAGATE room uses)
endfunction()

# segue_add_rooms(): all rooms, in the order of the table.
function(segue_add_rooms)
  foreach(row IN LISTS SEGUE_ROOMS)
    segue_parse_row("${row}")
    segue_add_room(${room} "${uses}")
  endforeach()
endfunction()

# segue_add_golden(): the golden runner, as library, tests and program.
function(segue_add_golden)
  segue_parse_row("${SEGUE_RUNNER}")
  segue_glob(tests/golden/runner)
  segue_add_library(segue_golden "${uses}")
  target_include_directories(segue_golden PUBLIC ${CMAKE_SOURCE_DIR}/tests/golden)
  segue_add_tests(golden)
  add_executable(segue-golden ${CMAKE_SOURCE_DIR}/tests/golden/runner/golden_main.cpp)
  target_link_libraries(segue-golden PRIVATE segue_golden CLI11::CLI11)
endfunction()

# segue_add_binary(<name> <main file>): when the file exists; links every room.
function(segue_add_binary name main)
  file(GLOB main CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${main})
  if(main)
    add_executable(${name} ${main})
    foreach(row IN LISTS SEGUE_ROOMS)
      string(REGEX REPLACE ":.*" "" room "${row}")
      if(TARGET segue_${room})
        target_link_libraries(${name} PRIVATE segue_${room})
      endif()
    endforeach()
  endif()
endfunction()
