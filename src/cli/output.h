#pragma once

#include <string_view>

namespace segue::cli {

/// Results go to standard output through these. A reader that went away (`| head`) is no trouble;
/// anything else that keeps the text from getting out is Error(kIo).
void print(std::string_view text);
void flush_output();

}  // namespace segue::cli
