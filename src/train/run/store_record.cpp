#include "train/run/store_record.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "data/store/event_store.h"
#include "data/store/store_identity.h"
#include "data/store/store_stage.h"
#include "train/run_config.h"

namespace segue::train {
namespace {

using data::IdMaps;
using data::StoreIdentity;

/// A recorded store, and the one that is to take its place.
struct Stores {
  StoreIdentity recorded;
  IdMaps now;
};

/// Nothing where there is nothing to compare: whoever opens the store says why.
std::optional<Stores> compare(const RunState& state, const std::string& checkpoint,
                              const std::string& store) {
  if (store.empty()) return std::nullopt;
  const std::string folder = data::store_folder(store);
  if (!data::is_finished_store(folder)) return std::nullopt;
  const std::string trained_on = recorded_config(state.config).data.store;
  if (state.store.empty()) {
    if (!trained_on.empty()) {
      base::log_warning(fmt::format(
          "{}: was saved by a version that did not record which ids its rows stand for; only you "
          "can tell whether {} has the ids of the store that it was trained on ({})",
          checkpoint, store, trained_on));
    }
    return std::nullopt;
  }
  Stores stores{StoreIdentity::from_json(state.store), IdMaps(folder)};
  const std::string problem = ids_problem(stores.recorded, stores.now);
  if (problem.empty()) return stores;
  fail(ErrorCode::kConfig,
       fmt::format("{}: its numbers stand for other ids than those that {} was trained with: {}. "
                   "Every row of a table would be taken for another's. Prepare the log with the "
                   "numbers of the store that the run was trained on: `segue prep --raw RAW --out "
                   "STORE --ids-from {}`",
                   store, checkpoint, problem, trained_on));
}

/// Nobody counts integers that stayed as they are: where the store is not as it was, some may be
/// new.
bool may_have_new_ids(const Stores& stores) {
  if (has_new_ids(stores.recorded, stores.now)) return true;
  const bool uncounted = std::ranges::any_of(stores.recorded.ids, [](const data::IdRecord& column) {
    return column.count == StoreIdentity::kAsTheyAre;
  });
  return uncounted && identity_of(stores.now) != stores.recorded;
}

}  // namespace

std::string store_record(const std::string& store, int64_t segments) {
  if (store.empty()) return {};
  return identity_of(IdMaps(data::store_folder(store), segments)).to_json();
}

bool require_ids(const RunState& state, const std::string& checkpoint, const std::string& store) {
  const std::optional<Stores> stores = compare(state, checkpoint, store);
  return stores && may_have_new_ids(*stores);
}

bool require_store(const RunState& state, const std::string& checkpoint, const std::string& store,
                   std::span<const std::string> allowed) {
  const std::optional<Stores> stores = compare(state, checkpoint, store);
  if (!stores) return false;
  // Without a manifest nobody can tell: only the path says that it is the same.
  if (is_same_store(stores->recorded, stores->now)) return !stores->now.manifests().empty();
  if (is_allowed(kStoreKey, allowed)) return false;
  fail(
      ErrorCode::kConfig,
      fmt::format("{}: is another store than the one that {} was trained on: it was prepared anew "
                  "since, or segments of it are gone. Resume with the store as it was (`segue prep "
                  "--append` adds later rows to it), allow the change with --allow-config-change "
                  "{}, take another --run folder, or start over with --overwrite",
                  store, checkpoint, kStoreKey));
}

}  // namespace segue::train
