#include "peer/reply_maker.h"

#include <utility>

namespace droidspeak {

PeerReplyMaker::PeerReplyMaker(const PeerServerOptions& options,
                               PeerSource source,
                               std::function<void()> on_made)
    : source_(std::move(source)),
      on_made_(std::move(on_made)),
      jobs_(options.max_clients * options.max_requests_per_client),
      pool_(std::make_shared<StagingPool>(kMaxReplyBytes, options.max_replies)) {
  for (int i = 0; i < options.num_threads; ++i) threads_.emplace_back([this] { run(); });
}

PeerReplyMaker::~PeerReplyMaker() {
  stop();
}

void PeerReplyMaker::stop() {
  is_stopping_.store(true);
  jobs_.close();
  pool_->close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool PeerReplyMaker::add(PeerReplyJob job) {
  return jobs_.push(std::move(job));
}

std::vector<MadePeerReply> PeerReplyMaker::take() {
  MutexLock lock(mutex_);
  return std::exchange(made_, {});
}

void PeerReplyMaker::run() {
  while (std::optional<PeerReplyJob> job = jobs_.pop()) {
    if (is_stopping_.load()) return;
    StagingPool::Buffer buffer = pool_->take();
    if (buffer == nullptr) return;
    MadePeerReply reply = make(*job, std::move(buffer));
    {
      MutexLock lock(mutex_);
      made_.push_back(std::move(reply));
    }
    on_made_();
  }
}

MadePeerReply PeerReplyMaker::make(const PeerReplyJob& job, StagingPool::Buffer buffer) {
  PeerReplyBody body(*buffer, job.request.keys.size());
  for (const PeerKey& key : job.request.keys) {
    if (body.is_full()) {
      body.add_later();
      continue;
    }
    std::optional<PeerEntry> entry = source_(key);
    if (!entry) {
      body.add_missing();
      num_misses_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    body.add(std::span(entry->head).first(entry->head_bytes), entry->bytes);
    num_entries_.fetch_add(1, std::memory_order_relaxed);
  }
  MadePeerReply reply;
  reply.client = job.client;
  reply.head.request_id = job.request.id;
  reply.head.num_keys = static_cast<uint32_t>(job.request.keys.size());
  reply.head.body_bytes = static_cast<uint32_t>(body.bytes().size());
  reply.head.tag = peer_reply_tag(reply.head, body.bytes(), *job.session);
  reply.body = std::move(buffer);
  return reply;
}

}  // namespace droidspeak
