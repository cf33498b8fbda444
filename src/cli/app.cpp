#include "cli/app.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/config.h"
#include "base/file.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "comm/deadline.h"

namespace segue::cli {
namespace {

constexpr const char* kFooter =
    "Start with `segue train configs/random.toml`; `segue COMMAND --help` tells more.\n"
    "Exit codes: 0 fine, 2 usage or config, 3 file, 4 corrupt file, 5 id out of range,\n"
    "            6 memory, 7 not supported here, 8 not finite, 9 another rank, 1 anything else.";

int report(const std::string& message, int code) {
  std::fputs(fmt::format("segue: error: {}\n", message).c_str(), stderr);
  return code;
}

/// CLI11 says of a mistyped command or an unknown option before it only that a command is missing.
void check_first_word(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names = {"--help", "-h", "--version"};
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (std::ranges::find(names, word) != names.end()) return;
  const std::string nearest = base::nearest_name(word, names);
  fail(ErrorCode::kInvalidArgument,
       fmt::format("there is no {} `{}`; {}", word.starts_with('-') ? "option" : "command", word,
                   nearest.empty() ? fmt::format("there is: {}", fmt::join(names, ", "))
                                   : fmt::format("did you mean `{}`?", nearest)));
}

void parse_and_run(int argc, const char* const* argv) {
  CLI::App app("Trains generative recommenders (HSTU).", "segue");
  app.footer(kFooter);
  app.set_version_flag("--version", version_line());
  app.require_subcommand(1);
  add_train(app);
  add_bench(app);
  add_config(app);
  add_doctor(app);
  add_edu(app);
  add_eval(app);
  add_flight(app);
  add_plan(app);
  add_score(app);
  add_checkpoint(app);
  add_init(app);
  add_inspect(app);
  add_mllog(app);
  add_prep(app);
  add_publish(app);
  add_report(app);
  add_synth(app);
  add_trace(app);
  add_version(app);
  if (argc < 2) {
    print(app.help());
    fail(ErrorCode::kInvalidArgument, "no command given");
  }
  check_first_word(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
  } catch (const CLI::CallForVersion&) {
    print(version_line() + "\n");
  } catch (const CLI::ParseError& error) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("{} (see `segue {}--help`)", error.what(),
                     argv[1][0] == '-' ? "" : std::string(argv[1]) + " "));
  }
  flush_output();
}

}  // namespace

// Where no error can be thrown any more, a rank ends by itself.
static_assert(kExitPeer == comm::kPeerExitCode);

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kConfig:
      return kExitUsage;
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
      return kExitFile;
    case ErrorCode::kCorrupt:
      return kExitCorrupt;
    case ErrorCode::kOutOfRange:
      return kExitOutOfRange;
    case ErrorCode::kOutOfMemory:
      return kExitOutOfMemory;
    case ErrorCode::kUnsupported:
      return kExitUnsupported;
    case ErrorCode::kNumeric:
      return kExitNumeric;
    case ErrorCode::kPeer:
      return kExitPeer;
  }
  return kExitOther;
}

std::vector<std::string> command_line() {
  std::vector<std::string> words;
  const std::string text = base::read_file("/proc/self/cmdline");
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) {
    words.emplace_back(text.c_str() + at);
  }
  return words;
}

namespace {

/// One word for a shell, whatever is in it.
std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string(R"('\'')") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string shell_command() {
  std::string line = "segue";
  const std::vector<std::string> words = command_line();
  for (size_t i = 1; i < words.size(); ++i) {
    const bool plain = words[i].find_first_of(" '\"$`\\*?#&;|<>()[]{}~!") == std::string::npos;
    line += plain ? " " + words[i] : " " + quoted(words[i]);
  }
  return line;
}

int run_segue(int argc, const char* const* argv) {
  try {
    parse_and_run(argc, argv);
    return kExitOk;
  } catch (const ExitWith& exit) {
    return exit.code;
  } catch (const Error& error) {
    return report(error.what(), exit_code(error.code()));
  } catch (const std::bad_alloc&) {
    return report("out of memory", kExitOutOfMemory);
  } catch (const std::exception& error) {
    return report(error.what(), kExitOther);
  } catch (...) {
    return report("something that is no error was thrown", kExitOther);
  }
}

}  // namespace segue::cli
