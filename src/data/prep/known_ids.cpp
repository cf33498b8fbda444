#include "data/prep/known_ids.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "data/store/event_store.h"
#include "data/store/store_stage.h"

namespace segue::data {
namespace {

const char* word(IdMapping mapping) {
  switch (mapping) {
    case IdMapping::kAuto:
      return "auto";
    case IdMapping::kAsIs:
      return "as_is";
    case IdMapping::kDense:
      break;
  }
  return "dense";
}

const char* word(ZeroMeaning zero) { return zero == ZeroMeaning::kValue ? "value" : "none"; }

void require_same_columns(const std::string& store, const LogSchema& there, const LogSchema& here) {
  const auto require = [&](const std::string& key, const std::string& a, const std::string& b) {
    if (a == b) return;
    fail(
        ErrorCode::kConfig,
        fmt::format("--ids-from {}: `{} = \"{}\"` here, `{} = \"{}\"` there; numbers are kept only "
                    "for ids of the same columns (see {}/{})",
                    store, key, b, key, a, store, kSchemaFile));
  };
  require("user", there.user, here.user);
  require("item", there.item, here.item);
  require("user_ids", word(there.user_ids), word(here.user_ids));
  require("item_ids", word(there.item_ids), word(here.item_ids));
  const std::vector<const AttributeFile*> known = there.all_attributes();
  for (const AttributeFile* const a : here.all_attributes()) {
    const auto same = std::ranges::find(known, a->name, &AttributeFile::name);
    if (same == known.end()) continue;
    require(fmt::format("value of attribute {}", a->name), (*same)->value, a->value);
    // Integers would all be larger by one, or smaller.
    require(fmt::format("zero of attribute {}", a->name), word((*same)->zero), word(a->zero));
  }
}

}  // namespace

IdMaps open_known_ids(const std::string& given, const LogSchema& schema) {
  const std::string store = store_folder(given);
  if (!is_finished_store(store)) {
    fail(ErrorCode::kNotFound,
         fmt::format("--ids-from {}: no finished store that `segue prep` made", given));
  }
  IdMaps maps(store);
  if (std::ranges::none_of(maps.columns(),
                           [&](const std::string& c) { return maps.is_numbered(c); })) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("--ids-from {}: has no id maps: its ids are integers that stayed as they are, "
                     "and stay so in every prep. Leave --ids-from out",
                     given));
  }
  require_same_columns(store, read_store_schema(store), schema);
  return maps;
}

}  // namespace segue::data
