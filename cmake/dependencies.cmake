# Third-party libraries, and which room links which (the table at the end). All come from the system:
# nothing is fetched at configure time.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(GTest REQUIRED)

# segue_find_header(<target> <header>): an interface target for a library used as headers only.
function(segue_find_header target header)
  find_path(${target}_INCLUDE_DIR ${header} REQUIRED)
  mark_as_advanced(${target}_INCLUDE_DIR)
  add_library(${target} INTERFACE)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE_DIR})
endfunction()
segue_find_header(segue_xxhash xxhash.h)  # the code defines XXH_INLINE_ALL: no library is linked
segue_find_header(segue_boost_math boost/math/distributions/students_t.hpp)
segue_find_header(segue_tomlplusplus toml++/toml.h)
target_compile_definitions(segue_tomlplusplus INTERFACE TOML_HEADER_ONLY=1)
# toml++ 3.3 asserts what its parser checks one line later (`[=]`): the mistake is the user's, and a
# build with assertions must say so as well. An option, because CMake knows no macros with arguments.
target_compile_options(segue_tomlplusplus INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Release>>>:-DTOML_ASSERT(...)=static_assert(true)>")
if(SEGUE_SANITIZE STREQUAL "address")
  # For a letter such as é outside of strings its tables reach what they call unreachable. Compiled by
  # g++ they give the right answer there, and the parser refuses the text.
  target_compile_options(segue_tomlplusplus INTERFACE -fno-sanitize=unreachable)
endif()

if(SEGUE_PORTABLE)
  set(segue_fmt fmt::fmt-header-only)
  set(segue_sodium_library libsodium.a)
else()
  set(segue_fmt fmt::fmt)
  set(segue_sodium_library sodium)
endif()

# libsodium: how ranks that meet over TCP know each other. It has no CMake configuration of its own.
segue_find_header(segue_sodium sodium.h)
find_library(SEGUE_SODIUM_LIBRARY ${segue_sodium_library} REQUIRED)
mark_as_advanced(SEGUE_SODIUM_LIBRARY)
target_link_libraries(segue_sodium INTERFACE ${SEGUE_SODIUM_LIBRARY})

# zlib and zstd: CSV files that are compressed.
segue_find_header(segue_unpack zlib.h)
find_path(SEGUE_ZSTD_INCLUDE_DIR zstd.h REQUIRED)
if(SEGUE_PORTABLE)
  find_library(SEGUE_ZLIB_LIBRARY libz.a REQUIRED)
  find_library(SEGUE_ZSTD_LIBRARY libzstd.a REQUIRED)
else()
  find_library(SEGUE_ZLIB_LIBRARY z REQUIRED)
  find_library(SEGUE_ZSTD_LIBRARY zstd REQUIRED)
endif()
mark_as_advanced(SEGUE_ZSTD_INCLUDE_DIR SEGUE_ZLIB_LIBRARY SEGUE_ZSTD_LIBRARY)
target_link_libraries(segue_unpack INTERFACE ${SEGUE_ZLIB_LIBRARY} ${SEGUE_ZSTD_LIBRARY})

# oneDNN by library and header: Debian's CMake configuration of it asks for OpenCL.
add_library(segue_onednn INTERFACE)
set(SEGUE_ONEDNN_SUMMARY "no oneDNN")
if(SEGUE_ONEDNN)  # AUTO or ON
  find_library(SEGUE_DNNL_LIBRARY dnnl)
  find_path(SEGUE_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.h)
  mark_as_advanced(SEGUE_DNNL_LIBRARY SEGUE_DNNL_INCLUDE_DIR)
  if(SEGUE_DNNL_LIBRARY AND SEGUE_DNNL_INCLUDE_DIR)
    # Only to hold the library to one thread per call; our own loops do not use OpenMP, so nothing is compiled for it.
    find_package(OpenMP REQUIRED COMPONENTS CXX)
    target_link_libraries(segue_onednn INTERFACE ${SEGUE_DNNL_LIBRARY} ${OpenMP_CXX_LIBRARIES})
    target_include_directories(segue_onednn SYSTEM INTERFACE ${SEGUE_DNNL_INCLUDE_DIR})
    set(SEGUE_ONEDNN_SUMMARY "oneDNN")
  elseif(NOT SEGUE_ONEDNN STREQUAL "AUTO")
    message(FATAL_ERROR "SEGUE_ONEDNN=${SEGUE_ONEDNN}, but libdnnl and oneapi/dnnl/dnnl.h were not found. "
      "Install libdnnl-dev, or configure with -DSEGUE_ONEDNN=OFF.")
  endif()
endif()
if(SEGUE_ONEDNN_SUMMARY STREQUAL "oneDNN")
  target_compile_definitions(segue_onednn INTERFACE SEGUE_HAS_ONEDNN=1)
else()
  target_compile_definitions(segue_onednn INTERFACE SEGUE_HAS_ONEDNN=0)
endif()

# Arrow and Parquet: headers and shared libraries out of a wheel, which scripts/fetch_wheels.sh puts
# there. Only src/data/parquet uses them. SEGUE_HAS_ARROW is 0 or 1.
set(SEGUE_HAS_ARROW 0)
set(SEGUE_ARROW_SUMMARY "no Parquet")
if(SEGUE_ARROW)  # AUTO or ON
  set(arrow_dir ${CMAKE_SOURCE_DIR}/.deps/arrow)
  # A glob is looked at again by every build: no need to configure by hand after fetching.
  file(GLOB arrow_stamp CONFIGURE_DEPENDS ${arrow_dir}/wheel.sha256)
  if(arrow_stamp)
    set(SEGUE_HAS_ARROW 1)
    set(SEGUE_ARROW_SUMMARY "Parquet")
    add_library(segue_arrow INTERFACE)
    target_include_directories(segue_arrow SYSTEM INTERFACE ${arrow_dir}/include)
    target_link_libraries(segue_arrow INTERFACE
      ${arrow_dir}/lib/libparquet.so ${arrow_dir}/lib/libarrow.so)
  elseif(NOT SEGUE_ARROW STREQUAL "AUTO")
    message(FATAL_ERROR "SEGUE_ARROW=${SEGUE_ARROW}, but ${arrow_dir} is not there. "
      "Run scripts/fetch_wheels.sh, or configure with -DSEGUE_ARROW=OFF.")
  endif()
endif()

set(segue_cudart "")
if(SEGUE_HAS_CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(segue_cudart CUDA::cudart_static)
endif()

# MPI (the C interface only) and NCCL, for comm. SEGUE_HAS_MPI and SEGUE_HAS_NCCL are 0 or 1.
add_library(segue_mpi INTERFACE)
set(SEGUE_HAS_MPI 0)
set(SEGUE_MPI_SUMMARY "no MPI")
if(SEGUE_MPI AND NOT (SEGUE_PORTABLE AND SEGUE_MPI STREQUAL "AUTO"))
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(SEGUE_HAS_MPI 1)
    set(SEGUE_MPI_SUMMARY "MPI")
    target_link_libraries(segue_mpi INTERFACE MPI::MPI_CXX)
  elseif(NOT SEGUE_MPI STREQUAL "AUTO")
    message(FATAL_ERROR "SEGUE_MPI=${SEGUE_MPI}, but no MPI was found. Install libopenmpi-dev and openmpi-bin, "
      "or configure with -DSEGUE_MPI=OFF.")
  endif()
endif()
target_compile_definitions(segue_mpi INTERFACE SEGUE_HAS_MPI=${SEGUE_HAS_MPI})

# The library itself is looked for at run time: where it is missing, device memory goes through the host.
add_library(segue_nccl INTERFACE)
set(SEGUE_HAS_NCCL 0)
if(SEGUE_HAS_CUDA)
  find_path(SEGUE_NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  mark_as_advanced(SEGUE_NCCL_INCLUDE_DIR)
  if(SEGUE_NCCL_INCLUDE_DIR)
    set(SEGUE_HAS_NCCL 1)
    target_include_directories(segue_nccl SYSTEM INTERFACE ${SEGUE_NCCL_INCLUDE_DIR})
    string(APPEND SEGUE_MPI_SUMMARY ", NCCL")
  endif()
endif()
target_compile_definitions(segue_nccl INTERFACE SEGUE_HAS_NCCL=${SEGUE_HAS_NCCL})

# SEGUE_PUBLIC_<room>: also for every room above. SEGUE_PRIVATE_<room>: for that room and its tests.
set(SEGUE_PUBLIC_base ${segue_fmt} nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
set(SEGUE_PRIVATE_base segue_tomlplusplus segue_xxhash)
set(SEGUE_PUBLIC_tensor ${segue_cudart})
set(SEGUE_PRIVATE_ops segue_onednn)
set(SEGUE_PRIVATE_comm segue_mpi segue_nccl segue_sodium)
set(SEGUE_PRIVATE_data segue_unpack)
set(SEGUE_PRIVATE_edu segue_sodium)
set(SEGUE_PRIVATE_report segue_tomlplusplus segue_boost_math)
set(SEGUE_PRIVATE_train segue_tomlplusplus)
set(SEGUE_PUBLIC_cli CLI11::CLI11)
