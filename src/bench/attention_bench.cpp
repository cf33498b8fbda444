#include <algorithm>
#include <charconv>
#include <string_view>

#include <fmt/format.h>

#include "attention/hstu_attention.h"
#include "attention/jagged40.h"
#include "base/error.h"
#include "bench/attention_case.h"
#include "bench/attention_parts.h"
#include "bench/bench.h"
#include "bench/workspace.h"

namespace segue::bench {
namespace {

constexpr const char* kMaskHelp =
    "masks are `causal`, `semilocal`, or parts joined by +: contextN, windowN, fullN, prefixN";

/// Of the shape `semilocal`: what each row sees at most, beside itself.
constexpr int64_t kPrefix = 128, kWindow = 512;

/// "context8+window512+full64": a prefix of 8, a window of 512, none for the last 64 of history.
attention::HstuMask parse_mask(const std::string& text) {
  attention::HstuMask mask;
  if (text == "semilocal") return {.window = kWindow, .global_prefix = kPrefix};
  std::string_view rest = text;
  while (!rest.empty() && rest != "causal") {
    const std::string_view part = rest.substr(0, rest.find('+'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t digits = std::min(part.find_first_of("0123456789"), part.size());
    const std::string_view name = part.substr(0, digits), number = part.substr(digits);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    int64_t* field = name == "context"  ? &mask.contextual_len
                     : name == "window" ? &mask.window
                     : name == "full"   ? &mask.min_full
                     : name == "prefix" ? &mask.global_prefix
                                        : nullptr;
    if (field == nullptr || error != std::errc() || end != number.data() + number.size()) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("bench attention: there is no mask `{}`; {}", text, kMaskHelp));
    }
    *field = value;
  }
  return mask;
}

/// One cell: sequences of one length, or (length 0) the batch jagged40.
struct Cell {
  int64_t sequences = 256, length = 0, head_dim = 128;
  std::string mask = "causal";
  DType dtype = DType::kBf16;  // of a GPU

  std::string lengths() const {
    return length == 0 ? "jagged40" : fmt::format("{}x{}", sequences, length);
  }
  std::string name() const {
    return fmt::format("d{} {} {} {}", head_dim, lengths(), mask, to_string(dtype));
  }
  std::vector<int64_t> offsets() const {
    LayerShape shape;
    shape.sequences = sequences;
    shape.length = length;
    shape.lengths = length == 0 ? Lengths::kJagged40 : Lengths::kEqual;
    return shape.offsets();
  }
};

/// The shapes that implementations are compared by, then other heads, masks and types.
std::vector<Cell> known_cells() {
  return {{},
          {32, 4096},
          {64, 2048},
          {128, 1024},
          {256, 512},
          {256, 0, 64},
          {256, 0, 128, "context8"},
          {32, 4096, 64},
          {256, 0, 128, "window512"},
          {32, 4096, 128, "semilocal"},
          {32, 4096, 64, "semilocal"},
          {256, 0, 32},
          {256, 0, 256},
          {256, 0, 128, "causal", DType::kF16}};
}

std::vector<Cell> grid_cells(const AttentionGrid& grid, Device device) {
  const auto or_default = [](const auto& given, auto standard) {
    return given.empty() ? standard : given;
  };
  const bool on_gpu = device.is_cuda();
  using Sizes = std::vector<int64_t>;
  const Sizes sequences = or_default(grid.sequences, on_gpu ? Sizes{8, 32, 128} : Sizes{4});
  const Sizes lengths =
      or_default(grid.lengths, on_gpu ? Sizes{256, 512, 1024, 2048, 4096} : Sizes{128, 512});
  const Sizes dims = or_default(grid.head_dims, Sizes{32, 64, 128, 256});
  const std::vector<std::string> masks =
      or_default(grid.masks, std::vector<std::string>{"causal", "context8", "window512"});
  std::vector<Cell> cells;
  for (const std::string& mask : masks) {
    for (const int64_t dim : dims) {
      // With lengths of its own a grid is what was asked for and nothing else.
      if (on_gpu && grid.lengths.empty()) cells.push_back({256, 0, dim, mask});
      for (const int64_t n : lengths) {
        for (const int64_t count : sequences) cells.push_back({count, n, dim, mask});
      }
    }
  }
  return cells;
}

std::vector<Cell> cells_of(const Settings& settings, Device device) {
  const AttentionGrid& grid = settings.grid;
  if (grid.given()) return grid_cells(grid, device);
  if (device.is_cpu()) {
    const LayerShape& s = settings.layer;
    return {{s.sequences, s.lengths == Lengths::kJagged40 ? 0 : s.length, s.head_dim}};
  }
  std::vector<Cell> cells;
  for (const Cell& cell : known_cells()) {
    if (cell.name().find(grid.only) != std::string::npos) cells.push_back(cell);
  }
  if (cells.empty()) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("bench attention: no shape has `{}` in its name", grid.only));
  }
  return cells;
}

class AttentionBench {
 public:
  AttentionBench(const Settings& settings, Report& report)
      : settings_(settings),
        report_(report),
        w_(report.device()),
        kernel_(attention::parse_kernel(settings.grid.kernel)) {}

  void run(const Cell& cell) {
    const AttentionCase c(w_, {offsets_of(cell), settings_.layer.heads, cell.head_dim,
                               parse_mask(cell.mask), cell.dtype, kernel_});
    const auto add = [&](Result r, const auto& work) {
      describe(cell, c.o.dtype, r);
      r.timing = measure(c.exec(), settings_.repeats, work);
      report_.add(r);
      return r;
    };
    const Result forward = add(c.forward_result(), [&] { c.forward(); });
    add(c.backward_result(), [&] { c.backward(); });
    if (!settings_.grid.parts) return;
    const Tensor dbias = w_.zero_parameter({3 * c.width()});
    Result with_bias = c.backward_result();  // what a layer asks for
    with_bias.name = "backward and its bias";
    add(with_bias, [&] { c.backward(dbias); });
    measure_attention_parts(c.exec(), settings_.repeats, c.p, {c.grad_o, c.dq, c.dk, c.dv}, forward,
                            report_);
  }

 private:
  std::vector<int64_t> offsets_of(const Cell& cell) const {
    // On the CPU a single cell is the shape of the layer, spread lengths included.
    if (report_.device().is_cpu() && !settings_.grid.given()) return settings_.layer.offsets();
    return cell.offsets();
  }

  void describe(const Cell& cell, DType dtype, Result& r) const {
    const attention::HeadShape head{cell.head_dim, cell.head_dim, dtype};
    r.labels = {{"lengths", cell.lengths()},
                {"mask", cell.mask},
                {"type", to_string(dtype)},
                {"kernel", attention::kernel_name(kernel_, head, report_.device())}};
    r.shape.insert(r.shape.begin() + 1, {"length", cell.length});
  }

  const Settings& settings_;
  Report& report_;
  Workspace w_;
  attention::Kernel kernel_;
};

/// Shares are those of ceilings that were measured in the same way.
void run_cells(const Settings& settings, const std::vector<Cell>& cells, Report& report) {
  add_ceilings(settings, report);
  AttentionBench bench(settings, report);
  for (const Cell& cell : cells) bench.run(cell);
}

}  // namespace

void bench_attention(const Settings& settings, Report& report) {
  const std::vector<Cell> cells = cells_of(settings, report.device());
  const attention::Kernel kernel = attention::parse_kernel(settings.grid.kernel);
  for (const Cell& cell : cells) {  // what is wrong is an error before any work
    parse_mask(cell.mask);
    if (cell.sequences < 1 || cell.length < 0 || cell.head_dim < 1) {
      fail(ErrorCode::kInvalidArgument, "bench attention: sizes of a grid must be at least 1");
    }
    attention::kernel_name(kernel, {cell.head_dim, cell.head_dim, cell.dtype}, report.device());
  }
  run_cells(settings, cells, report);
  if (!settings.grid.sustained) return;
  Settings sustained = settings;
  sustained.repeats = kSustained;
  run_cells(sustained, cells, report);
}

}  // namespace segue::bench
