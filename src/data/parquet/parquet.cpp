#include "data/parquet/parquet.h"

#include "data/parquet/parquet_reader.h"
#include "data/parquet/parquet_sessions.h"
#include "data/parquet/parquet_writers.h"

namespace segue::data {
namespace {

class ArrowParquet final : public ParquetSupport {
 public:
  std::unique_ptr<TableReader> open(const std::string& path,
                                    const std::vector<ColumnRequest>& columns, size_t block_rows,
                                    bool mark_bad_rows) const override {
    return open_parquet(path, columns, block_rows, mark_bad_rows);
  }
  std::vector<ParquetColumn> columns(const std::string& path) const override {
    return parquet_columns(path);
  }
  bool is_text(const std::string& path, const std::string& column) const override {
    return is_text_column(path, column);
  }
  void write_table(const std::string& path, std::span<const TableColumn> columns) const override {
    write_parquet_table(path, columns);
  }
  std::unique_ptr<SessionWriter> write_sessions(StoreStage& stage) const override {
    return make_session_writer(stage);
  }
};

class ParquetVectors final : public VectorFiles {
 public:
  std::unique_ptr<VectorWriter> create(const std::string& path,
                                       const VectorShape& shape) const override {
    return make_vector_writer(path, shape);
  }
  std::unique_ptr<VectorReader> open(const std::string& path,
                                     const VectorShape& shape) const override {
    return open_vectors(path, shape);
  }
};

}  // namespace

const ParquetSupport& parquet_support() {
  static const ArrowParquet kSupport;
  return kSupport;
}

const VectorFiles& parquet_vectors() {
  static const ParquetVectors kVectors;
  return kVectors;
}

}  // namespace segue::data
