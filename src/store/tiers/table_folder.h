// The codec tables that lie beside the blocks of a cache folder, in <folder>/tables. A family's
// blocks are stored raw and remembered until tables can be learned from them, which are written and
// used from then on, by later processes too. When most of what is written does not fit them, others
// are learned. Tables are small and never removed: pieces name theirs. Of several processes one
// learns and the others take its tables. Thread-safe; reads of files hold no lock.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "codec/kv_codec.h"
#include "store/block_label.h"
#include "store/coded_model.h"
#include "store/tiers/file_system.h"
#include "store/tiers/table_learner.h"
#include "store/tiers/write_queue.h"

namespace droidspeak {

class TableFolder {
 public:
  TableFolder(FileSystem& files,
              const std::filesystem::path& cache_folder,
              CodedModel model,
              const KvLayout& layout);

  // Those to write these blocks with; none while too little was seen. Used by one thread.
  std::shared_ptr<const CodecTables> for_writing(
      std::span<const std::shared_ptr<PendingWrite>> batch);
  // What became of K/V that was to be coded with them: many raw ones, and others are learned. Used
  // by the same thread.
  void note_stored(size_t num_coded, size_t num_raw);
  // Those that a piece names; none when they cannot be had now, are damaged or of another layout.
  std::shared_ptr<const CodecTables> find(const TablesName& name);

 private:
  std::shared_ptr<const CodecTables> load_for_writing();
  std::shared_ptr<const CodecTables> load(const std::filesystem::path& path);
  std::shared_ptr<const CodecTables> load_or_learn();
  std::shared_ptr<const CodecTables> learn(const FileHandle& file);
  Result<void> save(const CodecTables& tables, const FileHandle& file);
  void warn_of_saving(const Error& error) const;
  std::filesystem::path temporary() const;

  FileSystem& files_;
  const std::filesystem::path cache_folder_;
  const CodedModel model_;
  const Digest owner_;  // in the names of its tables
  const KvLayout layout_;

  // The writing thread's.
  bool has_looked_ = false;
  std::shared_ptr<const CodecTables> for_writing_;
  TableLearner learner_;
  std::set<TablesName> outgrown_;  // not for writing any more
  size_t num_coded_ = 0;           // of the recent entries
  size_t num_raw_ = 0;
  uint64_t num_unlearned_ = 0;  // times that learning failed

  Mutex mutex_;
  std::map<TablesName, std::shared_ptr<const CodecTables>> known_ GUARDED_BY(mutex_);
  // Damaged ones, with the time of their last change: not read again before they have another.
  std::map<std::filesystem::path, std::filesystem::file_time_type> damaged_ GUARDED_BY(mutex_);
};

// Where tables lie.
std::filesystem::path tables_folder(const std::filesystem::path& cache_folder);

}  // namespace droidspeak
