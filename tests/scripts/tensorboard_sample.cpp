// Writes the event files that tensorboard_test.sh expects: a run that was killed at step 3, began
// again, was killed at step 8 and twice resumed from step 5, whose evaluation was still to come.
#include <cstdio>

#include "base/error.h"
#include "report/tensorboard.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto live = [&](int from, int to, double scale) {
      segue::report::TensorboardWriter writer(argv[1], from);
      if (from == 5) writer.scalar("eval/auc", from, 0.5 * scale);
      for (int step = from + 1; step <= to; ++step) {
        writer.scalar("train/loss", step, scale / (1 + step));
      }
      if (to == 9) writer.scalar("eval/AUC of \u00e4", 5'000'000'000, 0.75);
      writer.flush();
    };
    live(0, 3, 1);
    live(0, 8, 2);
    live(5, 7, 1.5);
    live(5, 9, 3);
  } catch (const segue::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
