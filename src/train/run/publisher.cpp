#include "train/run/publisher.h"

#include <exception>

#include <fmt/format.h>

#include "base/log.h"
#include "base/stage.h"

namespace segue::train {

void Publisher::start(const std::string& checkpoint) {
  busy_ = true;
  worker_.submit([this, checkpoint] {
    base::name_thread("publish");
    try {
      publish_(checkpoint);
    } catch (const std::exception& error) {
      base::log_warning(
          fmt::format("{} was not published, training goes on: {}", checkpoint, error.what()));
    }
    busy_ = false;
  });
}

}  // namespace segue::train
