// Writes the event files that tensorboard_test.sh expects: a run that was killed at step 8 and went
// on from step 5.
#include <cstdio>

#include "base/error.h"
#include "report/tensorboard.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    {
      segue::report::TensorboardWriter writer(argv[1]);
      for (int step = 0; step < 8; ++step) writer.scalar("train/loss", step, 1.0 / (1 + step));
    }
    segue::report::TensorboardWriter writer(argv[1], 5);
    for (int step = 5; step < 10; ++step) writer.scalar("train/loss", step, 2.0 / (1 + step));
    writer.scalar("eval/AUC of \u00e4", 5'000'000'000, 0.75);
    writer.flush();
  } catch (const segue::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
