"""What tests share: tiny data and models, fake run folders, processes that are started and killed."""
