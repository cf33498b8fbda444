#include "edu/sidecar.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/checked_json.h"
#include "base/error.h"
#include "base/time.h"

namespace segue::edu {
namespace {

using Json = base::CheckedJson;

constexpr double kGiga = 1e9;
constexpr const char* kDigest = "digest";
constexpr const char* kShapeNames[] = {"features", "pooling", "width", "rows", "top", "batch"};

std::string file_name(const std::string& workload, const std::string& utc,
                      const std::string& fingerprint) {
  return fmt::format("{}_{}_{}.json", workload, utc, fingerprint);
}

/// SHA-256 of everything but itself: who edits a number by hand is found out at once.
std::string digest_of(Json sidecar) {
  sidecar["extra"].erase(kDigest);
  return sha256(sidecar.dump());
}

Json spans_json(const SpanSeconds& spans) {
  Json out = Json::object();
  for (size_t s = 0; s < kSpanCount; ++s) out[kSpanNames[s]] = 1e3 * spans[s];
  return out;
}

std::map<std::string, double> spans_map(const Json& spans) {
  std::map<std::string, double> out;
  for (const char* name : kSpanNames) out[name] = base::real_number(spans, name, 0);
  return out;
}

Json shape_json(const Workload& w) {
  const int64_t values[] = {w.features, w.pooling, w.width, w.rows, w.top, w.batch};
  Json out = Json::object();
  for (size_t i = 0; i < std::size(values); ++i) out[kShapeNames[i]] = values[i];
  return out;
}

Workload shape_from(const Json& shape) {
  Workload w;
  int64_t* values[] = {&w.features, &w.pooling, &w.width, &w.rows, &w.top, &w.batch};
  for (size_t i = 0; i < std::size(values); ++i) {
    *values[i] = base::whole_number(shape, kShapeNames[i], 1, int64_t{1} << 40);
  }
  return w;
}

Json extra_json(const SidecarFacts& f, const Roofline& r) {
  const double gather = f.gather_rate();
  const double working_set =
      4.0 * static_cast<double>(f.distinct_per_epoch) * static_cast<double>(f.shape.width);
  return {{"shape", shape_json(f.shape)},
          {"hardware", Json::parse(f.machine.canonical_json())},
          {"llc_detected_bytes", f.machine.llc_bytes},
          {"llc_knee_bytes", f.ceilings.knee_bytes},
          {"llc_bytes", std::max(f.machine.llc_bytes, f.ceilings.knee_bytes)},
          {"l2_bytes", f.machine.l2_bytes},
          {"table_bytes", f.shape.table_bytes()},
          {"lookups_per_step", f.lookups_per_step},
          {"distinct_rows_per_step", f.distinct_per_step},
          {"distinct_rows_per_epoch", f.distinct_per_epoch},
          {"working_set_bytes", working_set},
          {"axis_working_set",
           working_set_axis(working_set, static_cast<double>(std::max(f.machine.llc_bytes,
                                                                      f.ceilings.knee_bytes)))},
          {"stream_triad_GBps", r.peak_gbps},
          {"gather_peak_GBps", f.ceilings.gather_bytes / kGiga},
          {"gather_GBps", gather / kGiga},
          {"gather_share_of_peak", gather / f.ceilings.gather_bytes},
          {"gather_share_of_stream", gather / f.ceilings.stream_bytes},
          {"dispatch_floor_us", f.ceilings.dispatch_floor_us},
          {"embedding_share_fwd", f.times.forward_share()},
          {"embedding_share_step", f.times.step_share()},
          {"spans_ms", spans_json(f.times.median)},
          {"spans_p10_ms", spans_json(f.times.p10)},
          {"spans_p90_ms", spans_json(f.times.p90)},
          {"threads", f.threads},
          {"huge_pages", f.huge_pages},
          {"seed", f.seed},
          {"compiler", __VERSION__},
          {"counter_bytes", nullptr}};
}

}  // namespace

double embedding_share(const std::map<std::string, double>& ms, bool forward_only) {
  SpanSeconds spans{};
  for (size_t s = 0; s < kSpanCount; ++s) spans[s] = ms.at(kSpanNames[s]);
  return forward_only ? embedding_forward(spans) / forward_seconds(spans)
                      : embedding_step(spans) / step_seconds(spans);
}

double SidecarFacts::gather_rate() const {
  return 4 * lookups_per_step * static_cast<double>(shape.width) / times.median[kGatherSpan];
}

Roofline SidecarFacts::roofline() const {
  const auto n = static_cast<double>(times.steps);
  return {.peak_flops = ceilings.flops,
          .peak_gbps = ceilings.stream_bytes / kGiga,
          .seconds = times.wall_seconds,
          .flops = n * shape.step_flops(distinct_per_step),
          .bytes = n * shape.step_bytes(distinct_per_step, static_cast<double>(machine.l2_bytes)),
          .iterations = times.steps,
          .dispatch_floor_us = ceilings.dispatch_floor_us};
}

std::string utc_for_names() {
  std::string utc = base::iso_time_now();
  std::ranges::replace(utc, ':', '-');
  return utc;
}

std::string sidecar_name(const SidecarFacts& f) {
  return file_name(f.workload, f.utc, f.machine.fingerprint());
}

std::string sidecar_text(const SidecarFacts& f) {
  const Roofline r = f.roofline();
  Json j = {{"schema", kSidecarSchema},
            {"workload", f.workload},
            {"utc", f.utc},
            {"platform",
             {{"hardware_fingerprint_short", f.machine.fingerprint()},
              {"machine_class", f.machine.machine_class},
              {"peak_FLOPS", r.peak_flops},
              {"peak_BW_GBps", r.peak_gbps},
              {"ridge_FLOPS_per_byte", r.ridge()}}},
            {"measurement",
             {{"wall_time_s", r.seconds},
              {"n_iter", r.iterations},
              {"analytic_flops_total", r.flops},
              {"analytic_bytes_total", r.bytes},
              {"achieved_FLOPS", r.achieved_flops()},
              {"achieved_BW_GBps", r.achieved_gbps()},
              {"intensity_FLOPS_per_byte", r.intensity()},
              {"dispatch_utilization", r.utilization()}}},
            {"regime_inference",
             {{"axis_arithmetic_intensity", intensity_axis(r.intensity(), r.ridge())},
              {"axis_dispatch", dispatch_axis(r.utilization(), r.step_us(), r.dispatch_floor_us)},
              {"rule", rule_text(r)}}},
            {"extra", extra_json(f, r)}};
  // As a reader will have it, so that the digest is of what is read.
  j = Json::parse(j.dump());
  j["extra"][kDigest] = digest_of(j);
  return j.dump(2) + "\n";
}

namespace {

/// Goes through a sidecar; each complaint names the member.
class Checker {
 public:
  Checker(const std::string& file, SidecarCheck& out) : file_(file), out_(out) {}

  void run(const Json& j) {
    const Json &platform = base::member_of(j, "platform"),
               &measured = base::member_of(j, "measurement"),
               &inference = base::member_of(j, "regime_inference"),
               &extra = base::member_of(j, "extra");
    if (base::text_of(extra, kDigest) != digest_of(j)) {
      problem("extra.digest is not that of this file: it was changed after it was written");
    }
    check_identity(j, platform, extra);
    const Roofline r = read_roofline(platform, measured, extra);
    check_numbers(r, platform, measured);
    check_counts(r, extra);
    check_extra(r, platform, extra);
    check_axes(r, inference, extra);
  }

 private:
  void problem(const std::string& text) { out_.problems.push_back(text); }
  void same(const char* name, double stated, double computed) {
    if (std::abs(stated - computed) <= 1e-12 * std::max(std::abs(stated), std::abs(computed)))
      return;
    problem(fmt::format("{} says {}, but its other numbers give {}", name, stated, computed));
  }
  void same_text(const char* name, const std::string& stated, const std::string& computed) {
    if (stated != computed) {
      problem(fmt::format("{} says `{}`, but its numbers give `{}`", name, stated, computed));
    }
  }

  void check_identity(const Json& j, const Json& platform, const Json& extra) {
    same_text("schema", base::text_of(j, "schema"), kSidecarSchema);
    const std::string fingerprint = base::text_of(platform, "hardware_fingerprint_short");
    same_text("the file's name", file_,
              file_name(base::text_of(j, "workload"), base::text_of(j, "utc"), fingerprint));
    if (base::text_of(platform, "machine_class").empty())
      problem("platform.machine_class is empty");
    const nlohmann::json sorted = nlohmann::json::parse(base::member_of(extra, "hardware").dump());
    same_text("platform.hardware_fingerprint_short", fingerprint,
              sha256(sorted.dump()).substr(0, 12));
    same("extra.llc_detected_bytes", base::real_number(extra, "llc_detected_bytes"),
         base::real_number(base::member_of(extra, "hardware"), "llc_bytes"));
  }

  Roofline read_roofline(const Json& platform, const Json& measured, const Json& extra) {
    constexpr double kTiny = 1e-300;  // what is divided by is positive
    return {.peak_flops = base::real_number(platform, "peak_FLOPS", kTiny),
            .peak_gbps = base::real_number(platform, "peak_BW_GBps", kTiny),
            .seconds = base::real_number(measured, "wall_time_s", kTiny),
            .flops = base::real_number(measured, "analytic_flops_total", kTiny),
            .bytes = base::real_number(measured, "analytic_bytes_total", kTiny),
            .iterations = base::whole_number(measured, "n_iter", 1),
            .dispatch_floor_us = base::real_number(extra, "dispatch_floor_us", 0)};
  }

  void check_numbers(const Roofline& r, const Json& platform, const Json& measured) {
    same("platform.ridge_FLOPS_per_byte", base::real_number(platform, "ridge_FLOPS_per_byte"),
         r.ridge());
    same("measurement.achieved_FLOPS", base::real_number(measured, "achieved_FLOPS"),
         r.achieved_flops());
    same("measurement.achieved_BW_GBps", base::real_number(measured, "achieved_BW_GBps"),
         r.achieved_gbps());
    same("measurement.intensity_FLOPS_per_byte",
         base::real_number(measured, "intensity_FLOPS_per_byte"), r.intensity());
    same("measurement.dispatch_utilization", base::real_number(measured, "dispatch_utilization"),
         r.utilization());
    out_.intensity = r.intensity();
    out_.utilization = r.utilization();
    out_.ridge = r.ridge();
  }

  /// Counts follow from the shape.
  void check_counts(const Roofline& r, const Json& extra) {
    const Workload shape = shape_from(base::member_of(extra, "shape"));
    const double distinct = base::real_number(extra, "distinct_rows_per_step", 1);
    const auto n = static_cast<double>(r.iterations);
    same("measurement.analytic_flops_total", r.flops, n * shape.step_flops(distinct));
    same("measurement.analytic_bytes_total", r.bytes,
         n * shape.step_bytes(distinct, base::real_number(extra, "l2_bytes", 0)));
    same("extra.table_bytes", base::real_number(extra, "table_bytes"),
         static_cast<double>(shape.table_bytes()));
    const double all = base::real_number(extra, "distinct_rows_per_epoch", 1);
    const double lookups = base::real_number(extra, "lookups_per_step", 1);
    if (lookups > static_cast<double>(shape.lookups()) || distinct > lookups ||
        distinct > all * (1 + 1e-9) || all > static_cast<double>(shape.rows)) {
      problem("extra.lookups_per_step or distinct_rows_... is more than there can be");
    }
    out_.working_set_bytes = 4 * all * static_cast<double>(shape.width);
    same("extra.working_set_bytes", base::real_number(extra, "working_set_bytes"),
         out_.working_set_bytes);
    const std::map<std::string, double> spans = spans_map(base::member_of(extra, "spans_ms"));
    const double gather =
        4 * lookups * static_cast<double>(shape.width) / (spans.at("gather") * 1e-3) / kGiga;
    same("extra.gather_GBps", base::real_number(extra, "gather_GBps"), gather);
    same("extra.gather_share_of_peak", base::real_number(extra, "gather_share_of_peak"),
         gather / base::real_number(extra, "gather_peak_GBps", 0));
    same("extra.gather_share_of_stream", base::real_number(extra, "gather_share_of_stream"),
         gather / r.peak_gbps);
  }

  void check_extra(const Roofline& r, const Json& platform, const Json& extra) {
    same("extra.stream_triad_GBps", base::real_number(extra, "stream_triad_GBps"),
         base::real_number(platform, "peak_BW_GBps"));
    out_.llc_bytes = base::real_number(extra, "llc_bytes", 1);
    same("extra.llc_bytes", out_.llc_bytes,
         std::max(base::real_number(extra, "llc_detected_bytes", 0),
                  base::real_number(extra, "llc_knee_bytes", 0)));
    const std::map<std::string, double> spans = spans_map(base::member_of(extra, "spans_ms")),
                                        low = spans_map(base::member_of(extra, "spans_p10_ms")),
                                        high = spans_map(base::member_of(extra, "spans_p90_ms"));
    double shortest = 0;
    for (const auto& [name, ms] : spans) {
      if (low.at(name) > ms || ms > high.at(name))
        problem("spans_ms." + name + " is outside its percentiles");
      shortest += low.at(name) * 1e-3;
    }
    same("extra.embedding_share_fwd", base::real_number(extra, "embedding_share_fwd"),
         embedding_share(spans, true));
    same("extra.embedding_share_step", base::real_number(extra, "embedding_share_step"),
         embedding_share(spans, false));
    // Nine tenths of the steps took at least the tenth percentile of each of their spans, more or
    // less.
    if (r.seconds < 0.5 * shortest * static_cast<double>(r.iterations)) {
      problem("measurement.wall_time_s is less than its spans");
    }
    if (base::whole_number(extra, "threads", 1) > 4096) problem("extra.threads cannot be");
    base::flag_of(extra, "huge_pages");
    base::whole_number(extra, "seed");
    base::text_of(extra, "compiler");
  }

  void check_axes(const Roofline& r, const Json& inference, const Json& extra) {
    out_.axes = {{"arithmetic_intensity", intensity_axis(r.intensity(), r.ridge())},
                 {"dispatch", dispatch_axis(r.utilization(), r.step_us(), r.dispatch_floor_us)},
                 {"working_set", working_set_axis(out_.working_set_bytes, out_.llc_bytes)}};
    same_text("regime_inference.axis_arithmetic_intensity",
              base::text_of(inference, "axis_arithmetic_intensity"),
              out_.axes["arithmetic_intensity"]);
    same_text("regime_inference.axis_dispatch", base::text_of(inference, "axis_dispatch"),
              out_.axes["dispatch"]);
    same_text("extra.axis_working_set", base::text_of(extra, "axis_working_set"),
              out_.axes["working_set"]);
    same_text("regime_inference.rule", base::text_of(inference, "rule"), rule_text(r));
  }

  const std::string& file_;
  SidecarCheck& out_;
};

}  // namespace

SidecarCheck check_sidecar(const std::string& file, const std::string& text) {
  SidecarCheck out;
  try {
    Checker(file, out).run(base::parse_checked(text));
  } catch (const Error& error) {
    out.problems.emplace_back(error.what());
  }
  return out;
}

}  // namespace segue::edu
