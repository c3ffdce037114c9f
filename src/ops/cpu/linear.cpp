#include "ops/cpu/linear.h"

#include <algorithm>
#include <vector>

namespace droidspeak::cpu {
namespace {

// Fewer multiplications than this are not worth waking the other threads for.
constexpr int64_t kSerialWork = 1 << 16;
// Packing so few rows takes less time than waiting for another thread to have done it.
constexpr int64_t kPackedAlone = 8;
// Rows that are packed at a time otherwise.
constexpr int64_t kPackedRows = 48;
// Tasks per thread: enough to even out threads that run at different speeds.
constexpr int64_t kTasksPerThread = 8;

const LinearKernel& kernel_for(const Kernels& kernels, PanelKind kind) {
  switch (kind) {
    case PanelKind::kU4:
      return kernels.linear_u4;
    case PanelKind::kU6:
      return kernels.linear_u6;
    case PanelKind::kU5:
    case PanelKind::kU8:
      return kernels.linear_u8;
    default:
      return kernels.linear_float;
  }
}

// One segment's product: how its input is packed and how it is cut into tasks.
struct Job {
  const Segment* segment = nullptr;
  const LinearKernel* kernel = nullptr;
  int64_t tile_rows = 0;
  int64_t num_tiles = 0;
  int64_t tiles_per_task = 0;
  int64_t panels_per_task = 0;
  int64_t num_tasks = 0;
  size_t input = 0;    // bytes from the start of the packed inputs
  bool packs = false;  // the first job with this form of input packs it for the others

  int64_t panel_groups() const {
    return (segment->num_panels() + panels_per_task - 1) / panels_per_task;
  }

  size_t tile_bytes() const { return kernel->tile_bytes(segment->columns, segment->input_parts); }
};

class Product {
 public:
  Product(const LinearContext& context,
          const PackedMatrix& matrix,
          TensorView in,
          const LinearOutput& out)
      : context_(context), in_(in), out_(out) {
    const bool is_serial = in.rows * matrix.rows() * matrix.columns() < kSerialWork;
    num_threads_ = is_serial ? 1 : context.pool.num_threads();
    for (const Segment& segment : matrix.segments()) add_job(segment);
  }

  void run() {
    Scratch& scratch = context_.scratch;
    scratch.reserve_per_thread(scratch_bytes_ + (packs_alone() ? input_bytes_ : 0));
    if (!packs_alone()) {
      shared_input_ = scratch.shared(input_bytes_);
      for (const Job& job : jobs_) {
        for_each(job.num_tiles, std::max<int64_t>(1, kPackedRows / job.tile_rows),
                 [&](int64_t begin, int64_t end, int) { pack(job, shared_input_, begin, end); });
      }
    }
    is_packed_.assign(static_cast<size_t>(num_threads_), 0);
    for_each(num_tasks_, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t task = begin; task < end; ++task) run_task(task, thread);
    });
  }

 private:
  // Every thread packs the input for itself instead of waiting for the others.
  bool packs_alone() const { return in_.rows <= kPackedAlone; }

  void add_job(const Segment& segment) {
    const LinearKernel& kernel = kernel_for(context_.kernels, segment.format.kind);
    Job job{.segment = &segment, .kernel = &kernel};
    job.tile_rows = kernel.tile_rows(in_.rows);
    job.num_tiles = (in_.rows + job.tile_rows - 1) / job.tile_rows;
    job.tiles_per_task = even_part(job.num_tiles, kMaxTaskRows / job.tile_rows);
    const int64_t row_groups = (job.num_tiles + job.tiles_per_task - 1) / job.tiles_per_task;
    const int64_t wanted = std::max<int64_t>(1, num_threads_ * kTasksPerThread / row_groups);
    job.panels_per_task = num_threads_ == 1 ? segment.num_panels()
                                            : std::max<int64_t>(1, segment.num_panels() / wanted);
    job.num_tasks = row_groups * job.panel_groups();
    share_input(job);
    num_tasks_ += job.num_tasks;
    scratch_bytes_ =
        std::max(scratch_bytes_, (kernel.scratch_bytes(segment.columns) + 63) / 64 * 64);
    jobs_.push_back(job);
  }

  void share_input(Job& job) {
    for (const Job& other : jobs_) {
      if (other.kernel == job.kernel &&
          other.segment->format.zero_point == job.segment->format.zero_point &&
          other.segment->input_parts == job.segment->input_parts) {
        job.input = other.input;
        job.packs = false;
        return;
      }
    }
    job.packs = true;
    job.input = input_bytes_;
    input_bytes_ += (static_cast<size_t>(job.num_tiles) * job.tile_bytes() + 63) / 64 * 64;
  }

  template <class Body>
  void for_each(int64_t count, int64_t grain, const Body& body) {
    if (num_threads_ == 1) return body(0, count, 0);
    context_.pool.for_each(count, grain, body);
  }

  // Packed input as a thread sees it.
  const std::byte* input_of(int thread) {
    if (!packs_alone()) return shared_input_;
    std::byte* input = context_.scratch.of_thread(thread) + scratch_bytes_;
    char& is_packed = is_packed_[static_cast<size_t>(thread)];
    if (is_packed == 0) {
      for (const Job& job : jobs_) pack(job, input, 0, job.num_tiles);
      is_packed = 1;
    }
    return input;
  }

  void pack(const Job& job, std::byte* input, int64_t begin, int64_t end) const {
    if (!job.packs) return;
    const int64_t tile_rows = job.tile_rows;
    for (int64_t t = begin; t < end; ++t) {
      const InputRows rows{.data = in_.f32_row(t * tile_rows),
                           .stride = in_.row_stride,
                           .num_rows = std::min(tile_rows, in_.rows - t * tile_rows),
                           .total_rows = in_.rows,
                           .columns = in_.columns,
                           .parts = job.segment->input_parts,
                           .zero_point = job.segment->format.zero_point};
      job.kernel->pack_tile(rows, input + job.input + static_cast<size_t>(t) * job.tile_bytes());
    }
  }

  void run_task(int64_t index, int thread) {
    const Job* job = jobs_.data();
    for (; index >= job->num_tasks; ++job) index -= job->num_tasks;
    const int64_t tile = index / job->panel_groups() * job->tiles_per_task;
    const int64_t panel = index % job->panel_groups() * job->panels_per_task;
    job->kernel->multiply(
        {.weights = job->segment,
         .tiles = input_of(thread) + job->input,
         .num_rows = in_.rows,
         .tile_begin = tile,
         .tile_end = std::min(tile + job->tiles_per_task, job->num_tiles),
         .panel_begin = panel,
         .panel_end = std::min(panel + job->panels_per_task, job->segment->num_panels()),
         .out = out_,
         .scratch = context_.scratch.of_thread(thread)});
  }

  const LinearContext& context_;
  const TensorView in_;
  const LinearOutput out_;
  int num_threads_ = 1;
  std::vector<Job> jobs_;
  int64_t num_tasks_ = 0;
  size_t input_bytes_ = 0;
  size_t scratch_bytes_ = 0;
  std::byte* shared_input_ = nullptr;
  std::vector<char> is_packed_;  // by thread, when every thread packs the input for itself
};

}  // namespace

void multiply(const LinearContext& context,
              const PackedMatrix& matrix,
              TensorView in,
              const LinearOutput& out) {
  if (in.rows == 0) return;
  Product(context, matrix, in, out).run();
}

}  // namespace droidspeak::cpu
