// The schema of a raw log: read, made into rules, and written again.

#include "data/log/event_normalizer.h"
#include "data/log/log_schema.h"
#include "fuzz.h"

namespace {

using namespace segue;

data::LogSchema load(const std::string& text) {
  return data::load_log_schema({.file = "fuzz.toml", .text = text, .use_environment = false});
}

void use(const data::LogSchema& schema) {
  schema.samples().validate();
  const data::EventRules rules(schema);
  for (const float value : {data::Event::kNoValue, 0.f, 3.f, 1e9f}) {
    for (uint8_t kind = 0; kind < schema.kinds.size(); ++kind) {
      const data::Event event{.value = value, .kind = kind};
      for (size_t p = 0; p < rules.num_pools(); ++p) fuzz::touch(rules.in_pool(p, event));
      fuzz::touch(rules.may_be_anchor(event));
    }
  }
  for (const double unit : {schema.time_unit_seconds, schema.length_unit_seconds}) {
    int64_t seconds = 0;
    fuzz::touch(data::UnitScale(unit).to_seconds(INT64_MAX, seconds));
    fuzz::require(data::UnitScale(unit).to_seconds(0, seconds) && seconds == 0,
                  "nothing is nothing in any unit");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (text.empty()) return 0;  // would be read from the file
  const auto schema = fuzz::accepted([&] { return load(text); });
  if (!schema) return 0;
  use(*schema);
  const std::string written = base::to_toml(*schema);
  fuzz::require(base::to_toml(load(written)) == written, "what was written is what was read");
  return 0;
}
