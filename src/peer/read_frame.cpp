#include "peer/read_frame.h"

namespace droidspeak {

std::vector<PeerReadFramePointer> split_read(std::vector<PeerReadItem> items,
                                             PeerReadFrame::Time deadline,
                                             const std::shared_ptr<PeerReadSink>& sink) {
  std::vector<PeerReadFramePointer> frames;
  size_t bytes = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    bool is_full = frames.empty() || frames.back()->items.size() == kMaxKeysPerRequest ||
                   bytes + items[i].expected_bytes > kReplyTargetBytes;
    if (is_full) {
      frames.push_back(std::make_shared<PeerReadFrame>());
      frames.back()->sink = sink;
      frames.back()->deadline = deadline;
      bytes = 0;
    }
    bytes += items[i].expected_bytes;
    frames.back()->items.push_back(items[i]);
    frames.back()->indices.push_back(i);
  }
  return frames;
}

}  // namespace droidspeak
