#pragma once

#include <memory>

#include "data/store/session_writer.h"
#include "data/store/store_stage.h"

namespace segue::data {

std::unique_ptr<SessionWriter> make_session_writer(StoreStage& stage);

}  // namespace segue::data
