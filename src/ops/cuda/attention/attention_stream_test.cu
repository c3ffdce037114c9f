// How a stream's tiles are dealt out; needs no device.
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ops/cuda/attention/attention_stream_work.cuh"

namespace droidspeak::cuda {
namespace {

// Slices of one row each, some of them of none, in random order.
struct Slices {
  explicit Slices(std::mt19937& random) {
    const size_t count = 1 + random() % 40;
    for (size_t i = 0; i < count; ++i) {
      rows.push_back(random() % 5 == 0 ? 0 : 1);
      lengths.push_back(1 + static_cast<int32_t>(random() % (random() % 4 == 0 ? 9000 : 700)));
      positions.push_back(lengths.back() - 1);
      first_rows.push_back(static_cast<int32_t>(i));
    }
    TileArguments& a = task.tiles;
    a.slice_row = first_rows.data();
    a.slice_rows = rows.data();
    a.slice_length = lengths.data();
    a.row_position = positions.data();
    a.num_kv_heads = 1 + static_cast<int32_t>(random() % 8);
    a.window = random() % 3 == 0 ? 1 + static_cast<int32_t>(random() % 600) : 0;
    a.split_step = 128;
    a.most_splits = 32;
    task.num_slices = static_cast<int32_t>(count);
    int32_t end = 0;
    for (int32_t i = 0; i < task.num_slices; ++i) {
      const StreamSlice slice(a, i);
      end += (slice.end - slice.begin) * a.num_kv_heads;
      ends.push_back(end);
    }
  }

  std::vector<int32_t> rows;
  std::vector<int32_t> lengths;
  std::vector<int32_t> positions;
  std::vector<int32_t> first_rows;
  std::vector<int32_t> ends;
  StreamTask task{};
};

// Every split of every slice and head in exactly one run, which is at most a split from equal.
TEST(AttentionStream, DealsOutEverySplitOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    const Slices slices(random);
    const TileArguments& a = slices.task.tiles;
    const auto num_blocks = static_cast<int32_t>(1 + random() % 300);
    std::map<std::pair<int32_t, int32_t>, int32_t> finished;  // splits of a slice and head
    int32_t most_tiles = 0;
    for (int32_t block = 0; block < num_blocks; ++block) {
      StreamRun run(slices.task, slices.ends.data(), block, num_blocks);
      int32_t tiles = 0;
      int32_t splits = 0;
      while (run.advance()) {
        const StreamSlice& slice = run.tiles();
        if (run.is_new_item()) splits = 0;
        ASSERT_EQ(run.begin(), std::max(slice.begin, run.split() * slice.split_tiles));
        ASSERT_EQ(run.end(), std::min(slice.end, (run.split() + 1) * slice.split_tiles));
        tiles += run.end() - run.begin();
        ++splits;
        most_tiles = std::max(most_tiles, slice.split_tiles);
        if (run.ends_item()) finished[{run.slice(), run.kv_head()}] += splits;
      }
      ASSERT_LE(tiles, slices.ends.back() / num_blocks + 1 + most_tiles);
    }
    for (int32_t slice = 0; slice < slices.task.num_slices; ++slice) {
      for (int32_t head = 0; head < a.num_kv_heads && slices.rows[static_cast<size_t>(slice)] > 0;
           ++head)
        ASSERT_EQ((finished[{slice, head}]), StreamSlice(a, slice).num_splits());
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
