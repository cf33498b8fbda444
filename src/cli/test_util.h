#pragma once

// For tests only.

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/test_util.h"
#include "base/time.h"
#include "cli/app.h"

namespace segue::cli {

struct Outcome {
  int code = -1;  // exit code, -1 if a signal ended it
  int signal = 0;
  int64_t peak_bytes = 0;  // of a process
  std::string out, err;
};

/// The program in this process.
inline Outcome run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "segue");
  std::vector<const char*> argv;
  argv.reserve(arguments.size());
  for (const std::string& a : arguments) argv.push_back(a.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome o;
  o.code = run_segue(static_cast<int>(argv.size()), argv.data());
  o.out = testing::internal::GetCapturedStdout();
  o.err = testing::internal::GetCapturedStderr();
  return o;
}

/// Several processes may run at a time.
inline std::string unique(const std::string& name) {
  static int number = 0;
  return name + std::to_string(++number);
}

/// A `segue` of its own.
class Process {
 public:
  /// `prepare` runs in the new process before the program; false ends it with code 125.
  template <class Prepare>
  Process(std::vector<std::string> arguments, Prepare prepare)
      : Process({}, std::move(arguments), prepare) {}
  /// `launcher` is a command that starts programs, looked for where commands are.
  Process(std::vector<std::string> launcher, std::vector<std::string> arguments)
      : Process(std::move(launcher), std::move(arguments), [] { return true; }) {}
  template <class Prepare>
  Process(std::vector<std::string> launcher, std::vector<std::string> arguments, Prepare prepare)
      : out_(base::temp_path(unique("out"))), err_(base::temp_path(unique("err"))) {
    arguments.insert(arguments.begin(), SEGUE_BINARY);
    arguments.insert(arguments.begin(), launcher.begin(), launcher.end());
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    // Here already: a process that is killed at once has not come to it.
    for (const std::string* path : {&out_, &err_}) base::put_file(*path, "");
    pid_ = ::fork();
    if (pid_ == 0) {
      for (const auto& [path, fd] : {std::pair(&out_, 1), std::pair(&err_, 2)}) {
        ::dup2(::open(path->c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), fd);
      }
      if (!prepare()) ::_exit(125);
      ::execvp(argv[0], argv.data());
      ::_exit(126);
    }
  }
  explicit Process(std::vector<std::string> arguments)
      : Process(std::move(arguments), [] { return true; }) {}
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }

  pid_t pid() const { return pid_; }
  void kill(int signal = SIGKILL) const { ::kill(pid_, signal); }
  Outcome wait() {
    int status = 0;
    struct rusage usage {};
    EXPECT_EQ(::wait4(pid_, &status, 0, &usage), pid_);
    pid_ = -1;
    Outcome o;
    o.peak_bytes = usage.ru_maxrss * int64_t{1024};
    if (WIFEXITED(status)) o.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) o.signal = WTERMSIG(status);
    o.out = base::read_file(out_);
    o.err = base::read_file(err_);
    return o;
  }

 private:
  std::string out_, err_;
  pid_t pid_ = -1;
};

inline Outcome run_process(std::vector<std::string> arguments) {
  return Process(std::move(arguments)).wait();
}

/// The same with a signal that comes while the program reads `config`, a file of its arguments: a
/// pipe takes the file's place until somebody reads it.
inline Outcome run_signalled_at_config(std::vector<std::string> arguments,
                                       const std::string& config, int signal) {
  ::signal(SIGPIPE, SIG_IGN);  // nobody may be left to read
  const std::string text = base::read_file(config), aside = config + ".aside";
  EXPECT_EQ(::rename(config.c_str(), aside.c_str()), 0);
  EXPECT_EQ(::mkfifo(config.c_str(), 0600), 0);
  Process process(std::move(arguments));
  const base::Stopwatch watch;
  int writing = -1;
  while (writing < 0 && watch.seconds() < 20) {
    ::usleep(1000);
    writing = ::open(config.c_str(), O_WRONLY | O_NONBLOCK);  // fails while nobody reads
  }
  EXPECT_GE(writing, 0);
  EXPECT_EQ(::rename(aside.c_str(), config.c_str()), 0);  // for ranks that it starts
  process.kill(signal);
  EXPECT_EQ(::write(writing, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(writing);
  return process.wait();
}

}  // namespace segue::cli
