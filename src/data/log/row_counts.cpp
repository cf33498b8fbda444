#include "data/log/row_counts.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/file.h"

namespace segue::data {

RowCounts& RowCounts::operator+=(const RowCounts& other) {
  rows += other.rows;
  skipped += other.skipped;
  duplicates += other.duplicates;
  dropped = dropped || other.dropped;
  return *this;
}

std::string RowCounts::to_json() const {
  nlohmann::ordered_json j;
  j["rows"] = rows;
  j["skipped"] = skipped;
  j["reasons"] = nlohmann::ordered_json::array();
  for (const SkippedRows::Reason& reason : reasons) {
    j["reasons"].push_back(
        {{"column", reason.fault.column}, {"reason", reason.fault.reason}, {"rows", reason.rows}});
  }
  j["duplicates"] = duplicates;
  j["dropped"] = dropped;
  // A column may be called by any bytes.
  return j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

RowCounts RowCounts::read(const std::string& store) {
  const std::string path = store + "/" + kRowsFile;
  RowCounts counts;
  if (!base::exists(path)) return counts;
  try {
    const base::CheckedJson j = base::parse_checked(base::read_regular_file(path));
    counts.rows = base::whole_number(j, "rows");
    counts.skipped = base::whole_number(j, "skipped");
    for (const base::CheckedJson& reason : base::list_of(j, "reasons")) {
      counts.reasons.push_back({{base::text_of(reason, "column"), base::text_of(reason, "reason")},
                                base::whole_number(reason, "rows")});
    }
    counts.duplicates = base::whole_number(j, "duplicates");
    counts.dropped = base::flag_of(j, "dropped");
  } catch (const Error& error) {
    fail(error.code(), fmt::format("{}: {}", path, error.what()));
  }
  return counts;
}

}  // namespace segue::data
