#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace segue::edu {

/// How the ids of a sample find their rows. kCross: crosses of ids and history, hashed; kUniform:
/// random numbers, hashed; kHashedIds: the three ids of a sample, hashed; kIds: a table for each
/// id, no hash.
enum class Keys { kIds, kCross, kUniform, kHashedIds };

inline constexpr int64_t kDense = 16;  // dense features of a sample
inline constexpr int64_t kBottom = 8;  // width of both layers of the bottom MLP
inline constexpr int64_t kUserRows = 943, kItemRows = 1682, kOccupationRows = 21;

/// The shape of one workload; everything that is predicted about it follows from these numbers.
struct Workload {
  std::string name;
  Keys keys = Keys::kIds;
  int64_t features = 3;                                    // F: bags of a sample
  int64_t pooling = 1;                                     // L: lookups of a bag, which are summed
  int64_t width = 8;                                       // m: floats of a row
  int64_t rows = kUserRows + kItemRows + kOccupationRows;  // V: of all tables together
  int64_t top = 32;                                        // W: the top MLP is W, W / 2, 1
  int64_t batch = 256;                                     // B

  bool hashed() const { return keys != Keys::kIds; }
  int64_t lookups() const { return batch * features * pooling; }  // of a step
  int64_t concat_width() const { return kBottom + features * width; }
  int64_t table_bytes() const { return rows * width * 4; }
  /// First row of the table of a bag, where tables are separate.
  int64_t first_row(int64_t bag) const;

  int64_t bottom_parameters() const;
  int64_t top_parameters() const;
  int64_t mlp_parameters() const { return bottom_parameters() + top_parameters(); }
  int64_t embedding_parameters() const { return rows * width; }

  /// Of a sample. Two for each multiply-add of the MLPs, one for each addition of pooling.
  double forward_flops() const;
  /// Of a step, with the backward pass and both optimizers.
  double step_flops(double distinct_rows) const;

  /// What has to come from, or go to, memory. Forward: a row for each lookup, the weights once, and
  /// activations where `cache_bytes` cannot hold them. A step adds, for each distinct row, its
  /// update (read and written, with 8 bytes of state).
  double gathered_bytes() const { return 4.0 * static_cast<double>(lookups() * width); }
  double forward_bytes(double cache_bytes) const;
  double step_bytes(double distinct_rows, double cache_bytes) const;

 private:
  double mlp_multiply_adds() const;  // of a sample
  double activation_bytes(double cache_bytes) const;
};

/// 943, 1682 and 21 rows of 8 floats; one lookup a bag.
Workload micro_dlrm(int64_t batch);
/// One hashed table. `rows` and `width` are chosen by the machine: see sizing.h.
Workload micro_dlrm_dram(Keys keys, int64_t rows, int64_t width, int64_t pooling, int64_t batch);
/// The published shape: 2,000,000 rows of 256 floats, one lookup a bag.
Workload micro_dlrm_faithful(Keys keys, int64_t batch);

/// Floating-point operations for each byte gathered, forward, to first order: 1/4 + W / (2 L).
double pooled_intensity(double top, double pooling);

}  // namespace segue::edu
