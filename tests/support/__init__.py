"""What tests share: data, servers, and programs that tests start."""
