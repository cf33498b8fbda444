#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "runner/result.h"
#include "tensor/exec.h"

namespace segue::golden {

struct Options {
  std::string folder;
  Device device;
  Precision precision = Precision::kF32;
  bool json = false;
  bool verbose = false;  // every tensor, and stored tensors that were not compared
  /// Regular expression searched in "FILE/CASE OP [VARIANT]"; empty: all cases.
  std::string only;
  int threads = 1;  // 0: all cores; golden problems are too small for several
};

struct Report {
  std::vector<CaseResult> cases;
  std::vector<std::string> broken;   // files that could not be read
  std::vector<std::string> ignored;  // safetensors files that are not golden vectors

  int64_t failed() const;
  /// 0: all passed; 1: some failed; 2: a file is broken or there was nothing to run.
  int exit_code() const;
};

/// Runs every case of every *.safetensors file in the folder, files by name, cases in the order of
/// the file. Never throws for what a file contains; Error for a bad folder, expression or device.
Report run_folder(const Options& options,
                  const std::function<void(const CaseResult&)>& on_case = {});

/// Human and machine form.
void print_case(std::ostream& out, const CaseResult& result, bool verbose);
void print_summary(std::ostream& out, const Report& report);  // "N cases, M failed"
void print_json(std::ostream& out, const Options& options, const Report& report);

/// The program: runs, prints to `out` and messages to `err`, returns the exit code.
int run_program(const Options& options, std::ostream& out, std::ostream& err);

/// "f32", "f64", "bf16"; Error(kInvalidArgument) otherwise.
Precision parse_precision(const std::string& text);
const char* to_string(Precision precision);

}  // namespace segue::golden
