#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/file.h"
#include "base/parallel.h"
#include "base/time.h"
#include "bench/bench.h"
#include "bench/comparison_page.h"
#include "bench/row_tables.h"
#include "cli/bench_commands.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "train/presets.h"

namespace segue::cli {
namespace {

struct BenchArguments {
  std::string name;
  bench::Settings settings;
  bool json = false;
  bool jagged = false, jagged40 = false;
  bool has_lengths = false;  // sequences or their length were given
  int threads = 0;

  bench::Lengths lengths() const {
    if (jagged40) return bench::Lengths::kJagged40;
    if (jagged) return bench::Lengths::kSpread;
    return has_lengths ? bench::Lengths::kEqual : bench::Lengths::kAuto;
  }
};

void run(const BenchArguments& arguments) {
  base::set_num_threads(arguments.threads);
  bench::Report report(
      [](const std::string& line) {
        print(line + "\n");
        flush_output();
      },
      arguments.json, shell_command());
  bench::Settings settings = arguments.settings;
  settings.layer.lengths = arguments.lengths();
  bench::run_bench(arguments.name, settings, report);
}

std::string footer() {
  std::string text = "Benches:\n";
  for (const bench::Bench& b : bench::benches())
    text += fmt::format("  {:<10} {}\n", b.name, b.help);
  return text;
}

/// Options of the bench `attention`.
void add_grid(CLI::App& command, bench::AttentionGrid& grid) {
  const char* group = "Bench attention";
  command.add_option("--grid-sequences", grid.sequences, "numbers of sequences, e.g. 8,32,128")
      ->delimiter(',')
      ->group(group);
  command.add_option("--grid-lengths", grid.lengths, "lengths, e.g. 512,4096")
      ->delimiter(',')
      ->group(group);
  command.add_option("--grid-head-dims", grid.head_dims, "widths of a head, e.g. 32,64,128,256")
      ->delimiter(',')
      ->group(group);
  command
      .add_option(
          "--grid-masks", grid.masks,
          "causal, semilocal, or parts joined by +: contextN, windowN, fullN, prefixN; e.g. "
          "causal,context8+window512")
      ->delimiter(',')
      ->group(group);
  command.add_option("--only", grid.only, "shapes whose name contains this, e.g. 32x4096")
      ->group(group);
  command.add_flag("--parts", grid.parts, "the kernels of backward one by one, too")->group(group);
  command
      .add_option("--kernel", grid.kernel,
                  "of a GPU: auto, sm90, portable or plain; one that cannot do a shape is an error")
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--sustained", grid.sustained,
                "everything a second time: 150 runs to warm up, then 100 in a row, without rest")
      ->group(group);
}

/// Options of the bench `index`.
void add_index(CLI::App& command, bench::IndexShape& index) {
  const char* group = "Bench index";
  command.add_option("--slots", index.slots, "of the index; 0: 128 Mi on a GPU, 1 Mi on the CPU")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->group(group);
  command.add_option("--batch", index.batch, "keys of a call; 0: 1 Mi on a GPU, 8 ki on the CPU")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 26))
      ->group(group);
  command.add_option("--load", index.loads, "shares of slots in use, e.g. 0.5,1")
      ->delimiter(',')
      ->capture_default_str()
      ->group(group);
}

/// Options of the bench `tables`.
void add_tables(CLI::App& command, bench::TablesShape& tables) {
  const char* group = "Bench tables";
  command.add_option("--tables", tables.tables, "how many")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  command.add_option("--table-dim", tables.dim, "width of their rows")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 16))
      ->capture_default_str()
      ->group(group);
  command.add_option("--ids", tables.ids, "of all in a step; 0: 1 Mi on a GPU, 8 ki on the CPU")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 26))
      ->group(group);
}

struct TableArguments {
  std::string rows = "docs/rows";
  std::vector<std::string> files = {"docs/performance.md", "docs/planning.md", "docs/suite.md"};
  std::string picture, html, csv;
  bool check = false;
};

/// Beside the tables of the docs stands their picture of the map.
constexpr const char* kMapPicture = "docs/attention-map.svg";

void write_and_say(const std::string& path, const std::string& text) {
  base::write_file(path, text);
  print(path + "\n");
}

void make_tables(const TableArguments& arguments) {
  std::string stale;
  for (const std::string& file : arguments.files) {
    if (!base::exists(file)) {
      fail(ErrorCode::kNotFound,
           fmt::format("{}: no such file; run this in Segue's source folder, or name Markdown "
                       "files and --rows FOLDER",
                       file));
    }
    const bench::FilledTables filled = bench::fill_tables(file, arguments.rows);
    for (const std::string& table : filled.changed) {
      stale += fmt::format("\n  {}: table `{}`", file, table);
    }
    if (filled.changed.empty() || arguments.check) continue;
    base::write_file(file, filled.text);
    print(fmt::format("{}: {}\n", file, fmt::join(filled.changed, ", ")));
  }
  const std::string map = arguments.rows + "/map.jsonl";
  if (!arguments.picture.empty()) {
    const std::string drawn = bench::map_picture(map);
    const bool same =
        base::exists(arguments.picture) && base::read_file(arguments.picture) == drawn;
    if (!same && arguments.check) stale += fmt::format("\n  {}", arguments.picture);
    if (!same && !arguments.check) write_and_say(arguments.picture, drawn);
  }
  if (!arguments.csv.empty()) write_and_say(arguments.csv, bench::map_csv(map));
  if (!arguments.html.empty()) {
    write_and_say(arguments.html,
                  bench::comparison_page(
                      arguments.rows, fmt::format("{}, {}", version_line(), base::iso_time_now())));
  }
  if (arguments.check && !stale.empty()) {
    // Not wrong in itself, like a failed verdict: exit code 1.
    throw std::runtime_error("not what the rows give; `segue bench report` rewrites it:" + stale);
  }
}

void add_bench_report(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "report", "Rewrite the tables of Markdown files from rows that were kept.");
  const auto arguments = std::make_shared<TableArguments>();
  const CLI::Option* files =
      command->add_option("file", arguments->files, "Markdown files")->capture_default_str();
  command->add_option("--rows", arguments->rows, "folder with the files of rows, NAME.jsonl")
      ->capture_default_str();
  command->add_flag("--check", arguments->check,
                    "change nothing; exit code 1 where a table is not what its rows give");
  command->add_option("--picture", arguments->picture,
                      fmt::format("heat maps of the rows map.jsonl, as SVG; with the files of the "
                                  "docs {}",
                                  kMapPicture));
  command->add_option("--csv", arguments->csv, "the same as comma-separated values");
  command->add_option(
      "--html", arguments->html,
      "page with the suite's experiments, published figures beside ours and the map");
  command->callback([arguments, files] {
    if (files->count() == 0 && arguments->picture.empty() &&
        base::exists(arguments->rows + "/map.jsonl")) {
      arguments->picture = kMapPicture;
    }
    make_tables(*arguments);
  });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measure speed.");
  command->footer(footer());
  const auto arguments = std::make_shared<BenchArguments>();
  bench::Settings& s = arguments->settings;
  command->add_option("name", arguments->name, "what to measure, see below");
  command->add_flag("--json", arguments->json, "one JSON object per result");
  // Beyond these sizes there is no memory, and their products would overflow.
  const auto width = CLI::Range(int64_t{1}, int64_t{1} << 16);
  const auto count = CLI::Range(int64_t{1}, int64_t{1} << 24);
  command->add_option("--repeat", s.repeats.timed, "timed runs")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--warm-up", s.repeats.warm_up, "runs before them")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "CPU threads; 0: all cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--dim", s.layer.dim, "width of the layer")
      ->check(width)
      ->capture_default_str();
  command->add_option("--heads", s.layer.heads, "attention heads")
      ->check(width)
      ->capture_default_str();
  command->add_option("--head-dim", s.layer.head_dim, "width of a head")
      ->check(width)
      ->capture_default_str();
  const CLI::Option* sequences = command->add_option("--sequences", s.layer.sequences, "sequences")
                                     ->check(count)
                                     ->capture_default_str();
  const CLI::Option* length =
      command->add_option("--length", s.layer.length, "tokens of a sequence")
          ->check(count)
          ->capture_default_str();
  command->add_flag("--jagged", arguments->jagged, "lengths from 1 to twice that");
  command->add_flag("--jagged40", arguments->jagged40,
                    "256 sequences of 1 to 3,276 tokens; the default on a GPU");
  command->add_option("--dropout", s.layer.dropout, "of the layer")->capture_default_str();
  command->add_option("--device", s.device, "auto (a GPU if there is one), cpu or cuda:N")
      ->capture_default_str();
  command->add_option("--layers", s.layers, "of the bench `stack`")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--table-rows", s.table_rows,
                   "of the benches `embedding`, `cache` and `tables`; 0: by device")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  add_grid(*command, s.grid);
  add_index(*command, s.index);
  add_tables(*command, s.tables);
  command->add_option("--preset", s.preset,
                      fmt::format("of the benches `step` and `prepare`, in place of a config: {}",
                                  fmt::join(train::preset_names(), ", ")));
  command->add_option("--store", s.store,
                      "of the benches `step` and `prepare`: batches of this event store, filled "
                      "beforehand; what `segue train` on it compares with");
  command->add_option("--config", s.config, "config of the benches `step`, `prepare` and `balance`")
      ->capture_default_str();
  command->add_option("--set", s.sets, "override one value of that config; may be repeated")
      ->allow_extra_args(false);
  add_bench_report(*command);
  add_bench_suite(*command);
  add_bench_map(*command);
  command->callback([arguments, command, sequences, length] {
    if (!command->get_subcommands().empty()) return;  // it has done its work
    arguments->has_lengths = sequences->count() + length->count() > 0;
    run(*arguments);
  });
}

}  // namespace segue::cli
