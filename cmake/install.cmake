# `cmake --install`: the program, what it is configured with and what explains it. Readme and docs keep
# their places to each other, so that their links hold.

if(NOT TARGET segue)
  return()
endif()
include(GNUInstallDirs)

# Arrow comes out of a wheel, not from the system: it goes along. Other libraries stay where they are.
set_target_properties(segue PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
if(SEGUE_HAS_ARROW)
  set(segue_libdir ${CMAKE_INSTALL_LIBDIR}/segue)
  file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/segue)
  set_target_properties(segue PROPERTIES INSTALL_RPATH "$ORIGIN/${up}")
  file(GLOB arrow_libraries ${CMAKE_SOURCE_DIR}/.deps/arrow/lib/*.so.*)
  install(FILES ${arrow_libraries} DESTINATION ${segue_libdir})
endif()

install(TARGETS segue RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/segue)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md CHANGELOG.md LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
