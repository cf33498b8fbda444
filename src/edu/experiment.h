#pragma once

#include <string>
#include <vector>

#include "edu/lab.h"

namespace segue::edu {

enum class Verdict { kPass, kWarn, kFail, kNote };
const char* to_string(Verdict verdict);

struct Series {
  std::string name;
  std::vector<double> x, y;
};
enum class Scale { kLinear, kLogX, kLogBoth };
struct Chart {
  std::string title, x_label, y_label;
  Scale scale = Scale::kLinear;
  std::vector<Series> series;
};

/// One lesson: what three numbers predict, what was measured, and whether that agrees.
struct Experiment {
  std::string id, title;
  std::string prediction;  // before the measurement, in words
  std::string criterion;   // what would have to be seen
  std::string finding;     // what was seen, in words
  Verdict verdict = Verdict::kNote;
  std::vector<std::string> columns;
  std::vector<std::string> names;         // of rows; may be empty
  std::vector<std::vector<double>> rows;  // a number for each column
  std::vector<Chart> charts;

  std::string text() const;  // for a terminal
  std::string csv() const;
  std::vector<double> column(size_t number) const;
  /// One column over another.
  Series curve(std::string name, size_t x, size_t y) const;
  void plot(std::string what, std::string x_label, std::string y_label, Scale scale,
            std::vector<Series> series);
};

/// "E1" ... "E9" and their titles.
struct ExperimentKind {
  const char* id;
  const char* title;
  Experiment (*run)(Lab& lab);
};
const std::vector<ExperimentKind>& experiment_kinds();
/// Error(kInvalidArgument) with the known names.
const ExperimentKind& find_experiment(const std::string& id);
/// Measures the machine first, unless that was done.
Experiment run_experiment(Lab& lab, const std::string& id);

Experiment pair_experiment(Lab& lab);      // E1
Experiment width_experiment(Lab& lab);     // E2
Experiment mlp_experiment(Lab& lab);       // E3
Experiment size_experiment(Lab& lab);      // E4
Experiment pooling_experiment(Lab& lab);   // E5
Experiment batch_experiment(Lab& lab);     // E6
Experiment faithful_experiment(Lab& lab);  // E7
Experiment threads_experiment(Lab& lab);   // E8
Experiment skew_experiment(Lab& lab);      // E9

/// t = a + b x by least squares.
struct Line {
  double a = 0, b = 0, r2 = 0;
};
Line fit_line(const std::vector<double>& x, const std::vector<double>& t);

/// Seconds of a forward pass that three numbers predict: bytes gathered by the gather's peak, FLOP
/// by the product's.
struct Prediction {
  double gather = 0, mlp = 0;
  double forward() const { return gather + mlp; }
  double share() const { return gather / forward(); }
};
Prediction predict_forward(const Workload& workload, const Ceilings& ceilings);

}  // namespace segue::edu
