# Script: writes OUTPUT, a source that defines the texts of src/report/page/report_page.h, from the files of
# the folder PAGE.

set(text "// Made by cmake/embed_page.cmake.\n#include \"report/page/report_page.h\"\n\nnamespace segue::report::page {\n")
foreach(part kStyle:style.css kCharts:charts.js kScript:script.js kTimeline:timeline.js)
  string(REGEX MATCH "^(.*):(.*)$" _ ${part})
  set(name ${CMAKE_MATCH_1})
  file(READ ${PAGE}/${CMAKE_MATCH_2} content)
  if(content MATCHES "\\)embedded\"")
    message(FATAL_ERROR "${PAGE}/${CMAKE_MATCH_2}: the text `)embedded\"` would end the literal that holds it")
  endif()
  string(APPEND text "\nconst std::string_view ${name} = R\"embedded(${content})embedded\";\n")
endforeach()
file(WRITE ${OUTPUT} "${text}\n}  // namespace segue::report::page\n")
