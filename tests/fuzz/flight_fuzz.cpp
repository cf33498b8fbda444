// The flight records of a run's ranks, and what is made of them.
// Input: records, each up to a zero byte; those that are accepted are judged together, and those
// without a checksum get one.

#include <nlohmann/json.hpp>

#include "base/sealed_json.h"
#include "comm/flight/verdict.h"
#include "fuzz.h"

using namespace segue;

namespace {

/// The text as whoever can compute a checksum would have written it.
std::string sealed(const std::string& text) {
  const auto json = fuzz::accepted([&] { return base::parse_checked(text); });
  return json && json->is_object() ? base::seal_json(*json) : text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  std::vector<comm::FlightRecord> records;
  while (!input.empty()) {
    const std::string text = sealed(std::string(input.before('\0')));
    auto record = fuzz::accepted([&] { return comm::unseal_flight(text, "record"); });
    if (!record) continue;
    const std::string written = comm::seal(*record);
    fuzz::require(comm::seal(comm::unseal_flight(written, "again")) == written,
                  "a record reads back as itself");
    records.push_back(*std::move(record));
  }
  const comm::FlightFiles files = comm::sort_flight(std::move(records), {});
  const comm::FlightVerdict verdict = comm::judge(files);
  for (const int rank : verdict.ranks) {
    fuzz::require(rank >= 0 && rank < files.ranks, "a verdict names ranks of the run");
  }
  fuzz::require(!verdict.text.empty(), "a verdict says something");
  fuzz::touch(comm::flight_table(files, 4).size());
  return 0;
}
