"""What people and CI systems read: terminal, JUnit XML, receipt."""
