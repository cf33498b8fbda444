# Languages, warnings, code generation and sanitizers. Every target in this build is ours, so the
# flags are set once for the directory.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(SEGUE_CCACHE ccache)
mark_as_advanced(SEGUE_CCACHE)
if(SEGUE_CCACHE)
  # What one checkout has compiled another one finds, wherever it lies, precompiled headers included.
  set(segue_ccache ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${SEGUE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${segue_ccache})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${segue_ccache})
endif()

# ---- CUDA: sets SEGUE_HAS_CUDA to 0 or 1 ----
# The GPUs of this machine, as architectures; empty where there is none.
execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
  OUTPUT_VARIABLE segue_gpus RESULT_VARIABLE segue_no_gpu ERROR_QUIET)
if(segue_no_gpu)
  set(segue_gpus "")
endif()
string(REGEX MATCHALL "[0-9]+\\.[0-9]+" segue_gpus "${segue_gpus}")
list(REMOVE_DUPLICATES segue_gpus)
list(TRANSFORM segue_gpus REPLACE "\\." "")
list(TRANSFORM segue_gpus REPLACE "^90$" "90a")
set(segue_architectures ${SEGUE_CUDA_ARCHITECTURES})
if(segue_architectures STREQUAL "AUTO")
  set(segue_architectures "80;90a;100")
  if(SEGUE_CUDA STREQUAL "AUTO" AND segue_gpus)
    set(segue_architectures ${segue_gpus})
  endif()
endif()

set(SEGUE_HAS_CUDA 0)
if(SEGUE_CUDA STREQUAL "AUTO" AND SEGUE_SANITIZE)
  message(STATUS "sanitizers see host code only: building without CUDA")
elseif(SEGUE_CUDA STREQUAL "AUTO" AND NOT segue_gpus)
  message(STATUS "nvidia-smi finds no GPU: building without CUDA (SEGUE_CUDA=ON builds it for another machine)")
elseif(SEGUE_CUDA)  # AUTO or ON
  # Toolkits are often installed without being on PATH.
  find_program(SEGUE_NVCC nvcc HINTS /usr/local/cuda/bin)
  mark_as_advanced(SEGUE_NVCC)
  if(SEGUE_NVCC AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${SEGUE_NVCC})
  endif()
  # The probe compiles for our architectures, so that AUTO turns down a toolkit that is too old.
  set(CMAKE_CUDA_ARCHITECTURES ${segue_architectures})
  set(ENV{CUDAARCHS} "${segue_architectures}")
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # look again: it may have been installed since
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # CMake 3.25.1 has not heard that nvcc compiles C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(SEGUE_HAS_CUDA 1)
  elseif(NOT SEGUE_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SEGUE_CUDA=${SEGUE_CUDA}, but no nvcc that compiles for "
      "'${segue_architectures}' was found on PATH or in /usr/local/cuda/bin. "
      "Install a CUDA toolkit (12.8 or newer), set CUDACXX, or configure with -DSEGUE_CUDA=OFF.")
  endif()
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

# ---- code generation ----
# NaN, infinities and signed zeros keep their meaning (no -ffast-math); only errno and floating-point
# traps, which nothing here reads, are given up so that loops vectorise.
set(segue_codegen -fno-math-errno -fno-trapping-math)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(SEGUE_X86 TRUE)
  if(SEGUE_MARCH)
    list(APPEND segue_codegen -march=${SEGUE_MARCH})
  endif()
endif()

# ---- warnings ----
# Designated initialisers name what differs from the defaults; the rest is meant to be left out.
set(segue_warnings -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # -Wrestrict: g++ 12 reports plain `std::string s = "x"` (GCC bug 105651).
  list(APPEND segue_warnings -Wno-restrict)
  if(SEGUE_PCH)
    # Headers of the library that are precompiled no longer count as the library's: g++ 12 then reports
    # std::string::insert and replace. Builds without them still look.
    list(APPEND segue_warnings -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
  endif()
else()
  list(APPEND segue_warnings -Wno-unknown-pragmas)  # of g++, which hurries loops by them
endif()
# Other compilers warn about other things (g++ 13 about references that do not dangle, in <algorithm> about
# bounds that hold): there a warning is no reason not to build.
if(SEGUE_WERROR AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND segue_warnings -Werror)
endif()

# Host code inside .cu files gets the same code generation as .cpp files: an inline function that both
# compile must round the same way, whichever copy the linker keeps. -Wpedantic is for .cpp only,
# because the code that nvcc generates does not pass it.
list(JOIN segue_codegen "," segue_codegen_host)
list(JOIN segue_warnings "," segue_warnings_host)
add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:${segue_codegen};${segue_warnings};-Wpedantic>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=${segue_codegen_host};-Xcompiler=${segue_warnings_host}>")
add_link_options(-Wl,--as-needed)

# ---- sanitizers ----
if(SEGUE_SANITIZE STREQUAL "address")
  set(segue_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(SEGUE_SANITIZE STREQUAL "thread")
  set(segue_sanitize -fsanitize=thread)
elseif(SEGUE_SANITIZE)
  message(FATAL_ERROR "SEGUE_SANITIZE must be empty, address or thread, not '${SEGUE_SANITIZE}'")
endif()
if(SEGUE_SANITIZE)
  if(SEGUE_HAS_CUDA)
    message(FATAL_ERROR "SEGUE_SANITIZE needs SEGUE_CUDA=OFF or AUTO")
  endif()
  add_compile_options(${segue_sanitize} -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented code confuses g++'s flow analysis into warnings about uninitialised values.
    add_compile_options(-Wno-maybe-uninitialized)
  endif()
  add_link_options(${segue_sanitize})
endif()

# ---- fuzzing ----
if(SEGUE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "SEGUE_FUZZ needs clang, whose libFuzzer drives the targets: use `cmake --preset fuzz`")
  endif()
  # Counts which branches an input takes; the targets alone link libFuzzer itself (cmake/fuzz.cmake).
  add_compile_options(-fsanitize=fuzzer-no-link)
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
    include_directories(SYSTEM ${CMAKE_SOURCE_DIR}/scripts/tidy)  # a std::source_location
  endif()
endif()

# ---- portable binaries ----
if(SEGUE_PORTABLE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections;-fdata-sections>")
  add_link_options(-static-libstdc++ -static-libgcc -Wl,--gc-sections -s)
endif()

# ---- what the code can ask ----
add_compile_definitions(SEGUE_HAS_CUDA=${SEGUE_HAS_CUDA})

# SEGUE_VERSION and SEGUE_GIT_COMMIT, in "base/version_generated.h". The commit is read at build time;
# the file changes, and its includers compile again, only when the commit does.
set(SEGUE_GENERATED_DIR ${CMAKE_BINARY_DIR}/generated)
add_custom_target(segue_version
  COMMAND ${CMAKE_COMMAND} -DVERSION=${PROJECT_VERSION} -DSOURCE_DIR=${CMAKE_SOURCE_DIR}
    -DOUTPUT=${SEGUE_GENERATED_DIR}/base/version_generated.h -P ${CMAKE_SOURCE_DIR}/cmake/version.cmake
  BYPRODUCTS ${SEGUE_GENERATED_DIR}/base/version_generated.h
  COMMENT "Reading the git commit")
